//! Placement by table.

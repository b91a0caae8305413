//! Range finders.

//! Entries of a model's metadata, which runtimes hand out and viewers such as Netron show.

use super::proto::{ModelProto, StringStringEntryProto};
use prost::Message;

/// Adds entries to the model's metadata. An existing entry with the same key is replaced.
pub fn set_metadata(model: &mut ModelProto, entries: Vec<(&str, String)>) {
    model.metadata_props.retain(|bytes| {
        let entry = StringStringEntryProto::decode(bytes.clone());
        let key = entry.ok().and_then(|entry| entry.key).unwrap_or_default();
        !entries.iter().any(|(name, _)| *name == key)
    });
    for (key, value) in entries {
        let entry = StringStringEntryProto { key: Some(key.to_string()), value: Some(value) };
        model.metadata_props.push(entry.encode_to_vec().into());
    }
}

//! What was answered is on the device (ARCHITECTURE, "What always holds", 2), and a group is there as a whole or not
//! at all (`engine/src/durable.rs`): a server that starts again holds what it made durable, and may hold the group
//! that was on its way when it died.

use bytes::Bytes;
use percolator_engine::{Batch, Column, Direction, Engine};
use percolator_protocol::types::key;

use crate::watch::Content;

/// Its name.
pub(crate) const NAME: &str = "durable";

/// Whether the last group is there too, besides everything else.
///
/// # Errors
/// How what the engine holds is neither with that group nor without.
pub(crate) fn check(
    server: &str,
    engine: &dyn Engine,
    content: &Content,
    last_group: &[Batch],
) -> Result<bool, String> {
    let found = read(engine)?;
    if found == *content {
        return Ok(false);
    }
    let mut with_last_group = content.clone();
    for (column, key, value) in last_group.iter().flat_map(Batch::ops) {
        let place = (column, key.clone());
        match value {
            Some(value) => with_last_group.insert(place, value.clone()),
            None => with_last_group.remove(&place),
        };
    }
    if found == with_last_group {
        return Ok(true);
    }
    let missing = content
        .iter()
        .find(|(key, value)| found.get(*key) != Some(value));
    let added = found
        .iter()
        .find(|(key, value)| content.get(*key) != Some(value));
    Err(format!(
        "after its restart {server} holds {} records where {} are durable; lost or changed: {}; \
         not written: {}",
        found.len(),
        content.len(),
        describe(missing),
        describe(added)
    ))
}

fn read(engine: &dyn Engine) -> Result<Content, String> {
    let mut found = Content::new();
    for column in Column::ALL {
        let pairs = engine
            .scan(column, &[], &[], Direction::Forward)
            .map_err(|error| error.to_string())?;
        for pair in pairs {
            let (key, value) = pair.map_err(|error| error.to_string())?;
            found.insert((column, key), value);
        }
    }
    Ok(found)
}

fn describe(record: Option<(&(Column, Bytes), &Bytes)>) -> String {
    record.map_or_else(
        || "none".to_owned(),
        |((column, key), _)| {
            let name = column.name();
            let cell = if *column == Column::Lock {
                key::decode_cell(key).ok()
            } else {
                key::split_version(key)
                    .ok()
                    .and_then(|(cell, _)| key::decode_cell(cell).ok())
            };
            match cell {
                Some(cell) => format!("the {name} of cell {cell}"),
                None => format!("the {name} {}", percolator_client::escape(key)),
            }
        },
    )
}

//! Keys of the engine, memcomparable: byte order is the order of table, row, column, and newest
//! version first. The cells of a row lie together, so a tablet's boundary never splits a row.
//!
//! A row and a column are written with 0x00 as 0x00 0xFF and ended by 0x00 0x01; a version is the
//! complement of its timestamp, big-endian.

use super::{Cell, DecodeError, TableId, Timestamp};

const VERSION_BYTES: usize = 8;

/// The key of a cell: of its lock, and the prefix of its versions.
pub fn cell(table: TableId, row: &[u8], column: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(4 + row.len() + column.len() + 4 + VERSION_BYTES);
    key.extend_from_slice(&table.0.to_be_bytes());
    push_escaped(&mut key, row);
    push_end(&mut key);
    push_escaped(&mut key, column);
    push_end(&mut key);
    key
}

/// The key of one version of a cell; takes the cell's key.
pub fn version(mut cell: Vec<u8>, ts: Timestamp) -> Vec<u8> {
    cell.extend_from_slice(&(!ts.as_u64()).to_be_bytes());
    cell
}

/// A key at or below every key of the row and of later rows, above every key of earlier rows.
/// An empty row gives the table's start.
pub fn row_bound(table: TableId, row: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(4 + row.len() + 2);
    key.extend_from_slice(&table.0.to_be_bytes());
    push_escaped(&mut key, row);
    key
}

/// The end of a range of rows of one table: an empty `end` means the table's end.
/// Returns an empty key where nothing lies behind (the last table).
pub fn rows_end(table: TableId, end: &[u8]) -> Vec<u8> {
    match (end.is_empty(), table.0.checked_add(1)) {
        (false, _) => row_bound(table, end),
        (true, Some(next)) => next.to_be_bytes().to_vec(),
        (true, None) => Vec::new(),
    }
}

/// The first key behind every version of the cell whose key this is.
pub fn behind_cell(mut cell: Vec<u8>) -> Vec<u8> {
    // A cell's key ends in 0x00 0x01; nothing else starts with 0x00 0x02.
    if let Some(last) = cell.last_mut() {
        *last = 2;
    }
    cell
}

/// Splits a version's key into its cell's key and its timestamp.
///
/// # Errors
/// The key is too short.
pub fn split_version(key: &[u8]) -> Result<(&[u8], Timestamp), DecodeError> {
    let (cell, version) = key
        .split_last_chunk::<VERSION_BYTES>()
        .ok_or_else(|| damaged("shorter than a version"))?;
    Ok((cell, Timestamp::from_u64(!u64::from_be_bytes(*version))))
}

/// The cell that a cell's key names.
///
/// # Errors
/// The key is not one that [`cell`] makes.
pub fn decode_cell(key: &[u8]) -> Result<Cell, DecodeError> {
    let (table, rest) = key
        .split_first_chunk::<4>()
        .ok_or_else(|| damaged("shorter than a table's number"))?;
    let (row, rest) = take_escaped(rest)?;
    let (column, rest) = take_escaped(rest)?;
    if !rest.is_empty() {
        return Err(damaged("longer than a cell"));
    }
    Ok(Cell::new(TableId(u32::from_be_bytes(*table)), row, column))
}

/// Appends bytes so that their order is kept whatever follows them, as inside an index row.
pub fn push_component(key: &mut Vec<u8>, bytes: &[u8]) {
    push_escaped(key, bytes);
    push_end(key);
}

/// Reads what [`push_component`] wrote, and returns what follows it.
///
/// # Errors
/// The bytes are not of that form.
pub fn take_component(key: &[u8]) -> Result<(Vec<u8>, &[u8]), DecodeError> {
    take_escaped(key)
}

fn push_end(key: &mut Vec<u8>) {
    key.extend_from_slice(&[0, 1]);
}

fn push_escaped(key: &mut Vec<u8>, bytes: &[u8]) {
    let mut rest = bytes;
    while let Some(at) = rest.iter().position(|byte| *byte == 0) {
        key.extend_from_slice(&rest[..=at]);
        key.push(0xff);
        rest = &rest[at + 1..];
    }
    key.extend_from_slice(rest);
}

fn take_escaped(key: &[u8]) -> Result<(Vec<u8>, &[u8]), DecodeError> {
    let mut bytes = Vec::new();
    let mut rest = key;
    loop {
        let at = rest
            .iter()
            .position(|byte| *byte == 0)
            .ok_or_else(|| damaged("a part has no end"))?;
        bytes.extend_from_slice(&rest[..at]);
        match rest.get(at + 1) {
            Some(0xff) => bytes.push(0),
            Some(1) => return Ok((bytes, &rest[at + 2..])),
            _ => return Err(damaged("a zero byte that is neither escaped nor an end")),
        }
        rest = &rest[at + 2..];
    }
}

fn damaged(detail: &'static str) -> DecodeError {
    DecodeError {
        what: "key",
        detail,
    }
}

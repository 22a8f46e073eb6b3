//! The commands of the codec:
//!
//! | command | further lines | prints |
//! |---|---|---|
//! | `keys` | rows, or cells | their keys in byte order |
//! | `encode` | rows | their stored records |
//! | `decode lock` or `write` | hexadecimal digits | the record |
//! | `bounds row=bob [table=1]` | | the bounds around a row |

use bytes::Bytes;
use percolator_protocol::types::{Cell, Lock, TableId, Timestamp, Write, key, unescape};

use super::args::{self, Args, read_cell, read_ts};
use super::rows;
use super::store::Row;

/// Runs the command, if it is one of the codec.
pub(crate) fn run(name: &str, args: &str, input: &[String]) -> Option<Result<Vec<String>, String>> {
    match name {
        "keys" => Some(keys(input)),
        "encode" => Some(input.iter().map(|line| encode(line)).collect()),
        "decode" => Some(input.iter().map(|line| decode(args, line)).collect()),
        "bounds" => Some(bounds(args)),
        _ => None,
    }
}

fn keys(input: &[String]) -> Result<Vec<String>, String> {
    let mut keys = Vec::new();
    for line in input {
        let name = line.trim();
        let (cell, ts) = match name.split_once('@') {
            Some((cell, ts)) => (read_cell(cell)?, Some(read_ts(ts)?)),
            None => (read_cell(name)?, None),
        };
        let cell_key = key::cell(cell.table, &cell.row, &cell.column);
        keys.push(match ts {
            Some(ts) => key::version(cell_key, ts),
            None => cell_key,
        });
    }
    keys.sort();
    keys.iter()
        .map(|key| Ok(format!("{}  {}", hex(key), named(key)?)))
        .collect()
}

/// The cell or the version that a key names, by decoding it.
fn named(bytes: &[u8]) -> Result<String, String> {
    if let Ok(cell) = key::decode_cell(bytes) {
        return Ok(args::cell(&cell));
    }
    let (cell, ts): (&[u8], Timestamp) = key::split_version(bytes).map_err(text)?;
    let cell: Cell = key::decode_cell(cell).map_err(text)?;
    Ok(format!("{}@{}", args::cell(&cell), args::ts(ts)))
}

fn encode(line: &str) -> Result<String, String> {
    let (_, row) = rows::read_row(line)?;
    Ok(match row {
        Row::Lock(lock) => hex(&lock.encode()),
        Row::Write(ts, write) => hex(&write.encode(ts)),
        Row::Data(_, value) => hex(&value),
    })
}

fn decode(what: &str, line: &str) -> Result<String, String> {
    let digits: String = line.split_whitespace().collect();
    let byte = |at| u8::from_str_radix(digits.get(at..at + 2).unwrap_or_default(), 16);
    let record: Result<Vec<u8>, _> = (0..digits.len()).step_by(2).map(byte).collect();
    let record = Bytes::from(record.map_err(text)?);
    let (cell, at) = (Cell::new(TableId(1), "cell", ""), Timestamp::from_u64(8));
    let row = match what {
        "lock" => Lock::decode(record).map(Row::Lock),
        "write" => Write::decode(at, record).map(|write| Row::Write(at, write)),
        other => return Err(format!("{other} is no record")),
    };
    Ok(row.map_or_else(|error| error.to_string(), |row| rows::row(&cell, &row)))
}

fn bounds(args: &str) -> Result<Vec<String>, String> {
    let mut args = Args::read(args)?;
    let row = unescape(&args.need("row")?)?;
    let table = args
        .named("table")
        .map_or(Ok(1), |table| args::read_number(&table))?;
    args.end()?;
    let table = TableId(u32::try_from(table).map_err(text)?);
    Ok(vec![
        format!("row_bound    {}", hex(&key::row_bound(table, &row))),
        format!("rows_end     {}", end(&key::rows_end(table, &row))),
        format!("cell         {}", hex(&key::cell(table, &row, b""))),
        format!(
            "behind_cell  {}",
            hex(&key::behind_cell(key::cell(table, &row, b"")))
        ),
    ])
}

/// `none` for the empty key that stands for no end.
fn end(key: &[u8]) -> String {
    if key.is_empty() {
        "none".into()
    } else {
        hex(key)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

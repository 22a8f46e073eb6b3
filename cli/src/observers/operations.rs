//! What a handler outside of the process is sent of a change, and the lines of JSON by which it takes part in the transaction
//! of the run. Programs and webhooks have the same.

use base64::prelude::{BASE64_STANDARD, Engine};
use bytes::Bytes;
use percolator_client::{Change, HandlerError, OpenTxn};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::output::with_bytes;

/// A line of what a program prints, or of what a webhook answers.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Operation {
    Put(CellText),
    Delete(CellText),
    Get(CellText),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct CellText {
    table: Option<String>,
    row: Option<String>,
    row_base64: Option<String>,
    column: Option<String>,
    column_base64: Option<String>,
    value: Option<String>,
    value_base64: Option<String>,
}

/// What it names, as bytes.
struct NamedCell {
    table: String,
    row: Bytes,
    column: Bytes,
}

/// The change, as programs and webhooks have it.
pub(super) fn introduction(change: &Change, txn: &OpenTxn) -> Value {
    let json = json!({
        "table": change.table,
        "changed_at": change.changed_at.to_string(),
        "start_ts": txn.start_ts().to_string(),
        "value": null,
    });
    let json = with_bytes(json, &[("row", &change.row), ("column", &change.column)]);
    match &change.value {
        Some(value) => with_bytes(json, &[("value", value)]),
        None => json,
    }
}

impl Operation {
    /// Reads a line.
    pub(super) fn read(line: &str) -> Result<Self, HandlerError> {
        let read = serde_json::from_str(line);
        let why = |error| format!("it says {:?}, which can't be read: {error}", line.trim());
        read.map_err(why).map_err(HandlerError::from)
    }

    /// Whether it reads, and so has a response.
    pub(super) fn is_get(&self) -> bool {
        matches!(self, Self::Get(_))
    }

    /// Does it in the transaction of the run; returns the response to a get.
    pub(super) async fn carry_out(
        self,
        change: &Change,
        txn: &OpenTxn,
    ) -> Result<Option<Value>, HandlerError> {
        match self {
            Self::Put(cell) => {
                let value = cell.value()?.ok_or("a put needs a value")?;
                let cell = cell.name(change)?;
                txn.ready().await?;
                txn.put(&cell.table, &cell.row, &cell.column, value)?;
            }
            Self::Delete(cell) => {
                let cell = cell.name(change)?;
                txn.ready().await?;
                txn.delete(&cell.table, &cell.row, &cell.column)?;
            }
            Self::Get(cell) => {
                let cell = cell.name(change)?;
                let value = txn.get(&cell.table, &cell.row, &cell.column).await?;
                let answer = json!({ "value": null });
                return Ok(Some(match &value {
                    Some(value) => with_bytes(answer, &[("value", value)]),
                    None => answer,
                }));
            }
        }
        Ok(None)
    }
}

impl CellText {
    fn name(self, change: &Change) -> Result<NamedCell, HandlerError> {
        let row = bytes("row", self.row, self.row_base64)?;
        let column = bytes("column", self.column, self.column_base64)?;
        Ok(NamedCell {
            table: self.table.unwrap_or_else(|| change.table.clone()),
            row: row.ok_or("a cell without a row")?,
            column: column.unwrap_or_default(),
        })
    }

    fn value(&self) -> Result<Option<Bytes>, HandlerError> {
        bytes("value", self.value.clone(), self.value_base64.clone())
    }
}

fn bytes(
    name: &str,
    text: Option<String>,
    base64: Option<String>,
) -> Result<Option<Bytes>, HandlerError> {
    match (text, base64) {
        (Some(_), Some(_)) => Err(format!("{name} and {name}_base64 are both there").into()),
        (Some(text), None) => Ok(Some(text.into())),
        (None, Some(base64)) => {
            let decoded = BASE64_STANDARD.decode(base64);
            let decoded = decoded.map_err(|error| format!("{name}_base64: {error}"))?;
            Ok(Some(decoded.into()))
        }
        (None, None) => Ok(None),
    }
}

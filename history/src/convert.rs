//! Histories in the formats of other checkers, so that nobody has to believe ours.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Value, json};

use crate::transaction::{Op, Outcome, Transaction};

/// What can't be said in the other format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConvertError {
    /// Elle's list-append knows appends and reads of whole lists of numbers.
    #[error(
        "transaction {transaction}: {what}; only histories of lists that grow can be converted, as \
         `percolator history record` makes them"
    )]
    NotAList {
        /// Which, from 1 on.
        transaction: usize,
        /// What it did.
        what: String,
    },
    /// Dbcop has no deletions: a cell without a value is one that was never written.
    #[error("transaction {transaction} deletes {cell}; this format has no deletions")]
    Deletion {
        /// Which, from 1 on.
        transaction: usize,
        /// The cell.
        cell: String,
    },
}

/// The elements of a list as it is written in a cell: numbers with commas between them. `None`: it is none.
pub fn list(value: Option<&str>) -> Option<Vec<u64>> {
    match value {
        None | Some("") => Some(Vec::new()),
        Some(text) => text.split(',').map(|number| number.parse().ok()).collect(),
    }
}

/// For Elle's `list-append`, as EDN: an operation a line, each invoked and ended.
///
/// # Errors
/// [`ConvertError::NotAList`].
pub fn elle(history: &[Transaction]) -> Result<String, ConvertError> {
    let mut keys: HashMap<&str, usize> = HashMap::new();
    let mut processes: BTreeMap<&str, usize> = BTreeMap::new();
    let mut next_process = 0;
    let mut text = String::new();
    for (at, transaction) in history.iter().enumerate() {
        let wrong = |what: String| ConvertError::NotAList {
            transaction: at + 1,
            what,
        };
        let mut invoked = Vec::new();
        let mut ended = Vec::new();
        let mut seen: HashMap<&str, Vec<u64>> = HashMap::new();
        for op in &transaction.ops {
            let (Op::Read(cell, _) | Op::Write(cell, _) | Op::Lock(cell)) = op;
            let known = keys.len();
            let key = *keys.entry(cell).or_insert(known);
            match op {
                Op::Read(_, value) => {
                    let elements = list(value.as_deref())
                        .ok_or_else(|| wrong(format!("read {cell} as {value:?}")))?;
                    invoked.push(format!("[:r {key} nil]"));
                    ended.push(format!("[:r {key} {elements:?}]").replace(',', ""));
                    seen.insert(cell, elements);
                }
                Op::Write(_, value) => {
                    let elements = list(value.as_deref());
                    let appended = elements.as_ref().and_then(|elements| {
                        let (last, before) = elements.split_last()?;
                        (seen.get(&**cell).map_or(&[][..], Vec::as_slice) == before)
                            .then_some(*last)
                    });
                    let Some(element) = appended else {
                        return Err(wrong(format!(
                            "wrote {value:?} to {cell}, which isn't the list that it read and one more"
                        )));
                    };
                    invoked.push(format!("[:append {key} {element}]"));
                    ended.push(format!("[:append {key} {element}]"));
                    seen.insert(cell, elements.unwrap_or_default());
                }
                Op::Lock(_) => {}
            }
        }
        let process = *processes.entry(&transaction.client).or_insert_with(|| {
            next_process += 1;
            next_process - 1
        });
        let ending = match transaction.outcome {
            Outcome::Committed => "ok",
            Outcome::Aborted => "fail",
            Outcome::Unknown => "info",
        };
        for (kind, ops) in [("invoke", invoked), (ending, ended)] {
            let index = 2 * at + usize::from(kind != "invoke");
            text += &format!(
                "{{:index {index}, :type :{kind}, :process {process}, :f :txn, :value [{}]}}\n",
                ops.join(" ")
            );
        }
        // Whoever doesn't know how it ended may not go on under the same name.
        if transaction.outcome == Outcome::Unknown {
            processes.remove(&*transaction.client);
        }
    }
    Ok(text)
}

/// For dbcop, as JSON: the transactions of each client in order. One of unknown outcome counts as committed
/// where a committed one has read from it.
///
/// # Errors
/// [`ConvertError::Deletion`].
pub fn dbcop(history: &[Transaction]) -> Result<String, ConvertError> {
    let read: BTreeSet<(&str, &str)> = history
        .iter()
        .filter(|transaction| transaction.outcome == Outcome::Committed)
        .flat_map(|transaction| &transaction.ops)
        .filter_map(|op| match op {
            Op::Read(cell, Some(value)) => Some((&**cell, &**value)),
            _ => None,
        })
        .collect();
    let mut variables: HashMap<&str, usize> = HashMap::new();
    let mut versions: HashMap<(&str, &str), usize> = HashMap::new();
    let mut sessions: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for (at, transaction) in history.iter().enumerate() {
        let mut events = Vec::new();
        let mut was_read = false;
        for op in &transaction.ops {
            let (Op::Read(cell, _) | Op::Write(cell, _) | Op::Lock(cell)) = op;
            let known = variables.len();
            let variable = *variables.entry(cell).or_insert(known);
            let mut version = |value| {
                let known = versions.len();
                *versions.entry((&**cell, value)).or_insert(known)
            };
            events.push(match op {
                Op::Read(_, value) => {
                    let version = value.as_deref().map(version);
                    json!({"Read": {"variable": variable, "version": version}})
                }
                Op::Write(_, Some(value)) => {
                    was_read |= read.contains(&(&**cell, &**value));
                    json!({"Write": {"variable": variable, "version": version(value)}})
                }
                Op::Write(_, None) => {
                    return Err(ConvertError::Deletion {
                        transaction: at + 1,
                        cell: cell.clone(),
                    });
                }
                Op::Lock(_) => continue,
            });
        }
        let committed = match transaction.outcome {
            Outcome::Committed => true,
            Outcome::Aborted => false,
            Outcome::Unknown => was_read,
        };
        sessions
            .entry(&transaction.client)
            .or_default()
            .push(json!({"events": events, "committed": committed}));
    }
    let sessions: Vec<Vec<Value>> = sessions.into_values().collect();
    Ok(format!("{}\n", json!(sessions)))
}

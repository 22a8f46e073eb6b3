//! Histories in the formats of other checkers, so that nobody has to believe ours.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::hashed::HashMap;
use crate::transaction::{Op, Outcome, Times, Transaction};

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

/// For Elle's `list-append`, as EDN: an operation a line, each invoked and ended. By their `times` where all
/// have them, and by one clock, with `:time` in nanoseconds; else one after the other, which says nothing of real
/// time. Elle's default, `strict-serializable`, is more than snapshot isolation promises: it has to be told
/// `--consistency-models snapshot-isolation`.
///
/// # Errors
/// [`ConvertError::NotAList`].
pub fn elle(history: &[Transaction]) -> Result<String, ConvertError> {
    let operations = operations(history)?;
    // The processes of each client that may go on.
    let mut idle: HashMap<&str, Vec<usize>> = HashMap::default();
    let mut processes = 0;
    let mut running: HashMap<usize, usize> = HashMap::default();
    let mut text = String::new();
    for (
        index,
        Moment {
            at,
            is_end,
            time_us,
        },
    ) in moments(history).into_iter().enumerate()
    {
        let Transaction {
            client, outcome, ..
        } = &history[at];
        let kind = match outcome {
            _ if !is_end => "invoke",
            Outcome::Committed => "ok",
            Outcome::Aborted => "fail",
            Outcome::Unknown => "info",
        };
        let free = idle.entry(client).or_default();
        let process = *running.entry(at).or_insert_with(|| {
            free.pop().unwrap_or_else(|| {
                processes += 1;
                processes - 1
            })
        });
        // Anyone who doesn't know how it ended may not go on under the same name.
        if is_end && *outcome != Outcome::Unknown {
            free.push(process);
        }
        let time = time_us.map_or_else(String::new, |time| {
            format!(", :time {}", 1_000 * u128::from(time))
        });
        let (invoked, ended) = &operations[at];
        let value = if is_end { ended } else { invoked };
        text += &format!(
            "{{:index {index}{time}, :type :{kind}, :process {process}, :f :txn, :value [{value}]}}\n"
        );
    }
    Ok(text)
}

/// When a transaction was invoked, or ended.
struct Moment {
    at: usize,
    is_end: bool,
    time_us: Option<u64>,
}

/// Invocations and ends in their order. An end that nobody saw comes last; what ran at an older snapshot proves
/// nothing of when that was, and is invoked as it ends.
fn moments(history: &[Transaction]) -> Vec<Moment> {
    let times: Option<Vec<&Times>> = history.iter().map(|of| of.times.as_ref()).collect();
    let times = times.filter(|times| times.windows(2).all(|two| two[0].clock == two[1].clock));
    let last = times.iter().flatten();
    let last = last
        .flat_map(|times| [times.began_us, times.ended_us])
        .flatten()
        .max();
    let mut moments: Vec<Moment> = (0..history.len())
        .flat_map(|at| {
            let times = times.as_ref().map(|times| times[at]);
            let ended = times.and_then(|times| times.ended_us.or(last));
            let began = times.and_then(|times| times.began_us.or(ended));
            [(false, began), (true, ended)].map(|(is_end, time_us)| Moment {
                at,
                is_end,
                time_us,
            })
        })
        .collect();
    if times.is_some() {
        // Of one microsecond nobody knows which was first: as if they had overlapped.
        moments.sort_by_key(|moment| (moment.time_us, moment.is_end));
    }
    moments
}

/// What each transaction asks Elle's database for, and what it is told.
fn operations(history: &[Transaction]) -> Result<Vec<(String, String)>, ConvertError> {
    let mut keys: HashMap<&str, usize> = HashMap::default();
    let mut operations = Vec::new();
    for (at, transaction) in history.iter().enumerate() {
        let wrong = |what: String| ConvertError::NotAList {
            transaction: at + 1,
            what,
        };
        let mut invoked = Vec::new();
        let mut ended = Vec::new();
        let mut seen: HashMap<&str, Vec<u64>> = HashMap::default();
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
        operations.push((invoked.join(" "), ended.join(" ")));
    }
    Ok(operations)
}

/// Which of the transactions were committed, or have to be: one of unknown outcome, where such a one has read from it.
fn counted_as_committed(history: &[Transaction]) -> Vec<bool> {
    let mut writers: HashMap<(&str, &str), Vec<usize>> = HashMap::default();
    for (at, transaction) in history.iter().enumerate() {
        for op in &transaction.ops {
            if let Op::Write(cell, Some(value)) = op {
                writers.entry((cell, value)).or_default().push(at);
            }
        }
    }
    let mut counted: Vec<bool> = history
        .iter()
        .map(|transaction| transaction.outcome == Outcome::Committed)
        .collect();
    let is_counted = |at: &usize| counted[*at];
    let mut to_look_at: Vec<usize> = (0..history.len()).filter(is_counted).collect();
    while let Some(reader) = to_look_at.pop() {
        for op in &history[reader].ops {
            let Op::Read(cell, Some(value)) = op else {
                continue;
            };
            for writer in writers.get(&(&**cell, &**value)).into_iter().flatten() {
                if history[*writer].outcome == Outcome::Unknown && !counted[*writer] {
                    counted[*writer] = true;
                    to_look_at.push(*writer);
                }
            }
        }
    }
    counted
}

/// For `dbcop verify`, as JSON: the transactions of each client in order, below what dbcop's generator says of
/// its histories (counts are the largest of their kind; when it was made isn't known). One of unknown outcome counts as committed
/// where a committed one has read from it. Reads of what the transaction wrote itself are left out: dbcop takes those of
/// one that was aborted, or that wrote the variable again, for reads of what nobody committed. [`crate::check`] looks
/// at them.
///
/// # Errors
/// [`ConvertError::Deletion`].
pub fn dbcop(history: &[Transaction]) -> Result<String, ConvertError> {
    let committed = counted_as_committed(history);
    let mut variables: HashMap<&str, usize> = HashMap::default();
    let mut versions: HashMap<(&str, &str), usize> = HashMap::default();
    let mut sessions: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for (at, transaction) in history.iter().enumerate() {
        let mut events = Vec::new();
        let mut own: BTreeSet<&str> = BTreeSet::new();
        for op in &transaction.ops {
            let (Op::Read(cell, _) | Op::Write(cell, _) | Op::Lock(cell)) = op;
            let known = variables.len();
            let variable = *variables.entry(cell).or_insert(known);
            match op {
                Op::Read(..) if own.contains(cell.as_str()) => continue,
                Op::Write(..) => {
                    own.insert(cell);
                }
                Op::Read(..) | Op::Lock(_) => {}
            }
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
        sessions
            .entry(&transaction.client)
            .or_default()
            .push(json!({"events": events, "committed": committed[at]}));
    }
    let sessions: Vec<Vec<Value>> = sessions.into_values().collect();
    let longest = sessions.iter().map(Vec::len).max().unwrap_or(0);
    let of_ops = history.iter().map(|transaction| transaction.ops.len());
    let history = json!({
        "params": {
            "id": 0,
            "n_node": sessions.len(),
            "n_variable": variables.len(),
            "n_transaction": longest,
            "n_event": of_ops.max().unwrap_or(0),
        },
        "info": "percolator history convert",
        "start": "1970-01-01T00:00:00Z",
        "end": "1970-01-01T00:00:00Z",
        "data": sessions,
    });
    Ok(format!("{history}\n"))
}

//! Lists that only grow: what is read is always the beginning of what is there in the end, and every
//! append that was answered is there once (Kingsbury, Alvaro: "Elle", 2020: of all registers lists tell
//! most about the order of their writes).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::FutureExt;
use parking_lot::Mutex;
use percolator_client::Error;
use percolator_client::transport::BoxFuture;

use super::{TableSpec, Workload};
use crate::recorder::Session;

const TABLE: &str = "lists";
const COLUMN: &str = "list";
/// New lists are begun so often, in milliseconds: none gets long.
const AGE_MS: u128 = 700;
const LOOKED_AT: &str = "append";

/// The workload.
#[derive(Default)]
pub struct Append {
    next: AtomicU64,
    /// What was read of each list.
    read: Mutex<BTreeMap<String, BTreeSet<Vec<u64>>>>,
    answered: Mutex<Vec<(String, u64)>>,
    refused: Mutex<Vec<(String, u64)>>,
}

fn parse(value: Option<&Bytes>) -> Vec<u64> {
    let text = value.and_then(|value| std::str::from_utf8(value).ok());
    text.unwrap_or_default()
        .split(',')
        .filter_map(|number| number.parse().ok())
        .collect()
}

impl Append {
    async fn append(&self, session: &Session) -> Result<(), Error> {
        let age = session.world.now().as_millis() / AGE_MS;
        let txn = session.begin().await?;
        let mut appended = Vec::new();
        for list in 0..1 + session.below(3) {
            let row = format!("{}-{age}", (list + session.below(3)) % 3);
            let value = txn.get(TABLE, &row, COLUMN).await?;
            let mut numbers = parse(value.as_ref());
            self.read
                .lock()
                .entry(row.clone())
                .or_default()
                .insert(numbers.clone());
            if session.below(3) == 0 || appended.iter().any(|(other, _)| *other == row) {
                continue;
            }
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            numbers.push(number);
            let text: Vec<String> = numbers.iter().map(u64::to_string).collect();
            txn.put(TABLE, &row, COLUMN, text.join(","))?;
            appended.push((row, number));
        }
        // Own appends that were read again are not the list's, until they are.
        let result = txn.commit().await;
        match &result {
            Ok(_) => self.answered.lock().extend(appended),
            Err(Error::Unknown { .. }) => {}
            Err(_) => self.refused.lock().extend(appended),
        }
        result.map(drop)
    }

    async fn compare(&self, session: &Session) -> Result<Option<String>, Error> {
        let txn = session.begin().await?;
        let cells = txn.scan(TABLE, "", "", false).await?;
        let lists: BTreeMap<String, Vec<u64>> = cells
            .iter()
            .map(|(row, _, value)| {
                let row = String::from_utf8_lossy(row).into_owned();
                (row, parse(Some(value)))
            })
            .collect();
        let none = Vec::new();
        for (row, number) in &*self.answered.lock() {
            let list = lists.get(row).unwrap_or(&none);
            let times = list.iter().filter(|other| *other == number).count();
            if times != 1 {
                return Ok(Some(format!("{number} is {times} times in list {row}")));
            }
        }
        for (row, number) in &*self.refused.lock() {
            if lists.get(row).unwrap_or(&none).contains(number) {
                return Ok(Some(format!("{number} was refused and is in list {row}")));
            }
        }
        let refused: BTreeSet<(String, u64)> = self.refused.lock().iter().cloned().collect();
        for (row, reads) in &*self.read.lock() {
            let list = lists.get(row).unwrap_or(&none);
            for read in reads {
                // What a transaction has read of its own.
                let own = read.last().is_some_and(|last| {
                    refused.contains(&(row.clone(), *last)) || !list.contains(last)
                });
                if !own && !list.starts_with(read) {
                    return Ok(Some(format!(
                        "list {row} was read as {read:?} and is {list:?}"
                    )));
                }
            }
        }
        Ok(None)
    }
}

impl Workload for Append {
    fn name(&self) -> &'static str {
        "append"
    }

    fn invariants(&self) -> &'static [&'static str] {
        &[LOOKED_AT]
    }

    fn tables(&self) -> Vec<TableSpec> {
        vec![(TABLE, vec!["1", "2"])]
    }

    fn load<'a>(&'a self, _: &'a Session) -> BoxFuture<'a, Result<(), Error>> {
        async { Ok(()) }.boxed()
    }

    fn step<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<(), Error>> {
        self.append(session).boxed()
    }

    fn check<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<Option<String>, Error>> {
        self.compare(session).boxed()
    }
}

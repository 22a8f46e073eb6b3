//! Streams of changes: what a stream has given up to a timestamp is what was committed up to it, each version once, and whole
//! transactions. The stream is taken up again and again, by whichever worker, at the timestamp up to which it has come.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use parking_lot::Mutex;
use percolator_client::transport::BoxFuture;
use percolator_client::{ChangeEvent, ChangesOptions, Error, Timestamp, Version};

use super::{TableSpec, Workload, tagged};
use crate::history::{End, Record};
use crate::invariants::leases_hold;
use crate::recorder::Session;

/// Its name.
pub(super) const NAME: &str = "changes";
const TABLE: &str = "followed";
const COLUMN: &str = "text";
const ROWS: u64 = 8;
const COMPLETE: &str = "changes: each once";
/// So little that some steps have no room for all.
const BUFFER_BYTES: u64 = 4_000;

/// The workload.
#[derive(Default)]
pub struct Changes(Mutex<Followed>);

/// What the streams have given.
#[derive(Default)]
struct Followed {
    /// Where the first of them began, and how far they have come.
    from: Timestamp,
    resolved: Timestamp,
    versions: Vec<Version>,
}

/// Row and value of what a transaction writes: none, it deletes the cell.
type Writes = BTreeMap<Bytes, Option<Bytes>>;

fn writes_of(record: &Record) -> Writes {
    let writes = record.writes().filter(|write| write.cell.table == TABLE);
    let writes = writes.filter(|write| !write.is_lock);
    writes
        .map(|write| (write.cell.row.clone(), write.value.clone()))
        .collect()
}

impl Changes {
    /// Changes some cells; one at least is put, by which the transaction is known.
    async fn write(&self, session: &Session) -> Result<(), Error> {
        let txn = session.begin().await?;
        let first = session.key(ROWS);
        for number in 0..1 + session.below(3) {
            let row = format!("r{}", (first + number * 3) % ROWS);
            if number > 0 && session.below(4) == 0 {
                txn.delete(TABLE, &row, COLUMN)?;
            } else {
                txn.put(TABLE, &row, COLUMN, tagged(1, session))?;
            }
        }
        txn.commit().await.map(drop)
    }

    /// Goes on with the stream, as far as so many timestamps, or until it ends.
    async fn follow(
        &self,
        session: &Session,
        until: Option<Timestamp>,
        steps: u64,
    ) -> Result<(), Error> {
        let mut from = self.0.lock().resolved;
        let options = ChangesOptions {
            from: Some(from),
            until,
            interval: Duration::from_millis(1 + session.below(40)),
            // In the end there may be much to be read at once.
            buffer_bytes: if until.is_some() {
                1 << 20
            } else {
                session.below(BUFFER_BYTES) as usize
            },
            ..ChangesOptions::default()
        };
        let mut changes = session.client.changes(TABLE, options).await?;
        let (mut given, mut left) = (Vec::<Version>::new(), steps);
        while left > 0 {
            let event = changes.next().await;
            // What it goes on from is held as long as it is followed.
            if let Err(error) = &event {
                leases_hold::look(session, left < steps, error);
            }
            match event? {
                None => return Ok(()),
                Some(ChangeEvent::Version(version)) => {
                    let last = given.last().map_or(from.next(), |last| last.commit_ts);
                    if version.commit_ts < last {
                        let why = format!("a version at {} behind {last}", version.commit_ts);
                        session.world.fail(COMPLETE, why);
                    }
                    given.push(version);
                }
                Some(ChangeEvent::Resolved(resolved)) => {
                    let mut followed = self.0.lock();
                    if followed.resolved != from {
                        // Another worker has come further.
                        return Ok(());
                    }
                    followed.versions.append(&mut given);
                    (followed.resolved, from) = (resolved, resolved);
                    left -= 1;
                }
            }
        }
        Ok(())
    }

    /// Goes on with the stream. If versions may have been collected, a new one begins.
    async fn follow_on(
        &self,
        session: &Session,
        until: Option<Timestamp>,
        steps: u64,
    ) -> Result<(), Error> {
        match self.follow(session, until, steps).await {
            Err(Error::TooOld(too_old)) => {
                let now = session.client.timestamp().await?;
                let mut followed = self.0.lock();
                if followed.resolved < too_old.barrier {
                    *followed = Followed {
                        from: now,
                        resolved: now,
                        versions: Vec::new(),
                    };
                }
                Ok(())
            }
            result => result,
        }
    }

    /// What is wrong with what was given, if anything.
    fn compare(&self, records: &[Record]) -> Option<String> {
        let followed = self.0.lock();
        let is_between = |ts: Timestamp| followed.from < ts && ts <= followed.resolved;
        let mut by_value: BTreeMap<Bytes, &Record> = BTreeMap::new();
        let mut missing: BTreeMap<Timestamp, &Record> = BTreeMap::new();
        for record in records {
            let writes = writes_of(record);
            let values = writes.values().flatten().cloned();
            by_value.extend(values.map(|value| (value, record)));
            if let End::Committed(ts) = record.end
                && is_between(ts)
                && !writes.is_empty()
            {
                missing.insert(ts, record);
            }
        }
        let transactions = followed
            .versions
            .chunk_by(|one, other| one.commit_ts == other.commit_ts);
        for versions in transactions {
            let commit_ts = versions[0].commit_ts;
            let given: Writes = versions
                .iter()
                .map(|version| (version.row.clone(), version.value.clone()))
                .collect();
            if given.len() != versions.len() {
                return Some(format!("a version of {commit_ts} was given twice"));
            }
            let Some(record) = given
                .values()
                .flatten()
                .find_map(|value| by_value.get(value))
            else {
                return Some(format!(
                    "nobody has written what was given of {commit_ts}: {given:?}"
                ));
            };
            let is_its = match record.end {
                End::Committed(ts) => ts == commit_ts,
                End::Open | End::Unknown => true,
                End::Aborted(_) => false,
            };
            let expected = writes_of(record);
            if !is_its || given != expected {
                return Some(format!(
                    "{commit_ts} has {given:?}, and its transaction, which is {}, has written {expected:?}",
                    record.end
                ));
            }
            missing.remove(&commit_ts);
        }
        let (ts, record) = missing.first_key_value()?;
        Some(format!(
            "{ts} was not given, of a stream from {} to {}: {:?}",
            followed.from,
            followed.resolved,
            writes_of(record)
        ))
    }
}

impl Workload for Changes {
    fn name(&self) -> &'static str {
        NAME
    }

    fn invariants(&self) -> &'static [&'static str] {
        &[COMPLETE]
    }

    fn tables(&self) -> Vec<TableSpec> {
        vec![(TABLE, vec!["r3", "r6"])]
    }

    fn load<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            let now = session.client.timestamp().await?;
            let mut followed = self.0.lock();
            (followed.from, followed.resolved) = (now, now);
            Ok(())
        }
        .boxed()
    }

    fn step<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            if session.below(5) < 3 {
                self.write(session).await
            } else {
                let steps = 1 + session.below(6);
                self.follow_on(session, None, steps).await
            }
        }
        .boxed()
    }

    fn check<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<Option<String>, Error>> {
        async move {
            let now = session.client.timestamp().await?;
            while self.0.lock().resolved < now {
                self.follow_on(session, Some(now), u64::MAX).await?;
            }
            Ok(session.recorder.look(|records| self.compare(records)))
        }
        .boxed()
    }
}

//! Observers: what writers change in one table, observers copy into a log in another one, on another server as a rule. Each
//! change is in the log at most once, and the last change of each row is in it in the end (paper, section 2.4).
//!
//! Observers are in loops of their own here, so that their transactions are recorded; a worker of the library makes the same
//! requests.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use percolator_client::transport::BoxFuture;
use percolator_client::{Change, Error, NotificationQuery};

use super::{TableSpec, Workload, tagged};
use crate::recorder::Session;

/// Its name.
pub(super) const NAME: &str = "observe";
const INBOX: &str = "inbox";
const LOG: &str = "log";
const ROWS: u64 = 6;
const COLUMN: &str = "text";
const LOST: &str = "observers: none is lost";
const TWICE: &str = "observers: at most one commits";
/// Entries of the log of a row that are kept.
const KEPT: usize = 40;
/// Notifications of one request for each tablet.
const LIMIT: u32 = 3;

/// What is given to an observer is its own for twice so long at the most.
const LEASE: Duration = Duration::from_millis(50);
/// In a cluster without clients all leases are over behind so many.
const REFUSED_MAX: u32 = 60;

/// The workload.
pub struct Observe;

fn row(number: u64) -> String {
    format!("r{number}")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Observe {
    /// Changes one or two cells.
    async fn write(&self, session: &Session) -> Result<(), Error> {
        let txn = session.begin().await?;
        for _ in 0..1 + session.below(2) {
            let row = row(session.key(ROWS));
            txn.put(INBOX, &row, COLUMN, tagged(1, session))?;
        }
        txn.commit().await.map(drop)
    }

    async fn changes(&self, session: &Session, lease: Duration) -> Result<Vec<Change>, Error> {
        let query = NotificationQuery {
            limit: LIMIT,
            lease,
        };
        let changes = session.client.notifications(INBOX, COLUMN, query).await;
        if let Err(Error::Invalid(why)) = &changes {
            session.world.fail(LOST, why.clone());
        }
        changes
    }

    /// Runs for a change. `changes_again`: the run changes its own cell, too.
    async fn run(
        &self,
        session: &Session,
        change: &Change,
        changes_again: bool,
    ) -> Result<(), Error> {
        let row = text(&change.row);
        let txn = session.begin().await?;
        let value = txn.acknowledge(INBOX, &row, COLUMN).await?;
        let Some(value) = value.as_deref().map(text) else {
            session
                .world
                .fail(LOST, format!("{row} has changed to nothing"));
            return Ok(());
        };
        let log = txn.get(LOG, &row, COLUMN).await?.unwrap_or_default();
        let log = text(&log);
        let mut entries: Vec<&str> = log.lines().collect();
        if entries.contains(&&*value) {
            // It can't commit: somebody else has acknowledged the change.
            let begun = txn.start_ts();
            if txn.commit().await.is_ok() {
                let why = format!("{begun} has acknowledged {value} of {row} a second time");
                session.world.fail(TWICE, why);
            }
            return Ok(());
        }
        entries.push(&value);
        let kept = entries.len().saturating_sub(KEPT);
        txn.put(LOG, &row, COLUMN, entries[kept..].join("\n"))?;
        if changes_again {
            txn.put(INBOX, &row, COLUMN, tagged(2, session))?;
        }
        txn.commit().await.map(drop)
    }

    async fn observe(&self, session: &Session) -> Result<(), Error> {
        let lease = LEASE * session.below(3) as u32;
        for change in self.changes(session, lease).await? {
            if session.below(4) == 0 {
                // Others may run for it meanwhile.
                let pause = session.rng.lock().about(Duration::from_millis(60));
                session.world.sleep(pause).await;
            }
            let changes_again = session.below(8) == 0;
            match self.run(session, &change, changes_again).await {
                Err(error) if !error.retryable() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// What is in the log, beside what there is.
    async fn compare(&self, session: &Session) -> Result<Option<String>, Error> {
        let txn = session.begin().await?;
        for number in 0..ROWS {
            let row = row(number);
            let value = txn.get(INBOX, &row, COLUMN).await?;
            let log = txn.get(LOG, &row, COLUMN).await?.unwrap_or_default();
            let (value, log) = (value.as_deref().map(text), text(&log));
            if value.as_deref() != log.lines().last() {
                return Ok(Some(format!(
                    "{row} is {value:?}, and no observer has seen that last: {log:?}"
                )));
            }
            let entries: BTreeSet<&str> = log.lines().collect();
            if entries.len() != log.lines().count() {
                let why = format!("the log of {row} has an entry twice: {log:?}");
                session.world.fail(TWICE, why);
            }
        }
        Ok(None)
    }
}

impl Workload for Observe {
    fn name(&self) -> &'static str {
        NAME
    }

    fn invariants(&self) -> &'static [&'static str] {
        &[LOST, TWICE]
    }

    fn tables(&self) -> Vec<TableSpec> {
        vec![(INBOX, vec!["r2", "r4"]), (LOG, vec!["r3"])]
    }

    fn load<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            session.client.observe(INBOX, COLUMN).await?;
            let status = session.client.observed(INBOX, Bytes::from(COLUMN)).await?;
            assert_eq!(status.waiting, 0, "nothing has changed yet");
            Ok(())
        }
        .boxed()
    }

    fn step<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            if session.below(5) < 2 {
                self.write(session).await
            } else {
                self.observe(session).await
            }
        }
        .boxed()
    }

    fn check<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<Option<String>, Error>> {
        async move {
            // Nobody writes any more, and all locks are gone: what waits is run for.
            let mut refused = 0;
            loop {
                let changes = self.changes(session, Duration::ZERO).await?;
                let status = session.client.observed(INBOX, COLUMN).await?;
                if status.waiting == 0 {
                    break;
                }
                if changes.is_empty() {
                    // They were given to clients that have ended.
                    session.world.sleep(LEASE).await;
                    refused += 1;
                } else {
                    refused = 0;
                }
                if refused > REFUSED_MAX {
                    let waiting = status.waiting;
                    return Ok(Some(format!(
                        "{waiting} changes wait, and nobody was given one for {refused} leases"
                    )));
                }
                for change in changes {
                    match self.run(session, &change, false).await {
                        Err(error) if !error.retryable() => return Err(error),
                        _ => {}
                    }
                }
            }
            self.compare(session).await
        }
        .boxed()
    }
}

//! Tables that are made and deleted while transactions write to several of them at once: what was committed
//! stays in the tables that stay, whichever table has the primary.

use std::collections::BTreeSet;

use futures_util::FutureExt;
use parking_lot::Mutex;
use percolator_client::Error;
use percolator_client::transport::BoxFuture;

use super::{TableSpec, Workload, number, tagged};
use crate::recorder::Session;

/// It is older than all others, so that it has the primary wherever it is written to.
const KEPT: &str = "kept";
const PREFIX: &str = "table-";
const ROWS: u64 = 4;
const RARE_ROWS: u64 = 1_000;
const COLUMN: &str = "c";
const LAST_DOOMED: usize = 4;
/// Tables in use at a time, but for the one that is kept.
const IN_USE: std::ops::Range<usize> = 2..6;

/// The workload.
#[derive(Default)]
pub struct Tables {
    names: Mutex<Names>,
}

#[derive(Default)]
struct Names {
    made: u64,
    /// Made, as its client was answered, and not yet to be deleted; the oldest first.
    in_use: Vec<String>,
    /// Perhaps deleted. In the end they are not there, nor are those whose creation was not answered.
    doomed: BTreeSet<String>,
    /// The last ones that were to be deleted: clients that don't know it yet still write to them.
    last_doomed: Vec<String>,
}

fn row(number: u64) -> String {
    format!("r{number}")
}

impl Tables {
    async fn create(&self, session: &Session) -> Result<(), Error> {
        let name = {
            let mut names = self.names.lock();
            names.made += 1;
            format!("{PREFIX}{}", names.made)
        };
        session.client.create_table(&name, &[row(2).into()]).await?;
        self.names.lock().in_use.push(name);
        Ok(())
    }

    async fn delete(&self, session: &Session, name: &str) -> Result<(), Error> {
        match session.client.delete_table(name).await {
            Ok(()) => {
                self.names.lock().doomed.remove(name);
                Ok(())
            }
            // Perhaps a master that has lost its state has not heard of it yet.
            Err(Error::UnknownTable { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// One that nobody will write to any more, to be deleted.
    fn doom(&self, session: &Session) -> Option<String> {
        let mut names = self.names.lock();
        let begun: Vec<&String> = names.doomed.iter().collect();
        if !begun.is_empty() && session.below(2) == 0 {
            return Some((*session.rng.lock().pick(&begun)).clone());
        }
        if names.in_use.len() < IN_USE.start {
            return None;
        }
        // Mostly an old one: it has the primaries of transactions with younger ones.
        let at = session.below(IN_USE.start as u64) as usize;
        let name = names.in_use.remove(at);
        names.doomed.insert(name.clone());
        names.last_doomed.push(name.clone());
        if names.last_doomed.len() > LAST_DOOMED {
            names.last_doomed.remove(0);
        }
        Some(name)
    }

    async fn write(&self, session: &Session) -> Result<(), Error> {
        let (mut tables, last_doomed) = {
            let names = self.names.lock();
            (names.in_use.clone(), names.last_doomed.clone())
        };
        while tables.len() > 1 + session.below(3) as usize {
            tables.remove(session.below(tables.len() as u64) as usize);
        }
        if tables.len() < 2 || session.below(4) == 0 {
            tables.push(KEPT.to_owned());
        }
        let mut row = row(session.below(ROWS));
        if !last_doomed.is_empty() && session.below(8) == 0 {
            // The primary lies there, unless the one that is kept is written as well. Hardly anybody meets its other locks.
            tables.insert(0, session.rng.lock().pick(&last_doomed).clone());
            row = format!("rare-{}", session.below(RARE_ROWS));
        }
        let txn = session.begin().await?;
        for table in &tables {
            let count = number(txn.get(table, &row, COLUMN).await?.as_ref());
            txn.put(table, &row, COLUMN, tagged(count + 1, session))?;
        }
        txn.commit().await.map(drop)
    }
}

impl Workload for Tables {
    fn name(&self) -> &'static str {
        "tables"
    }

    fn invariants(&self) -> &'static [&'static str] {
        &[]
    }

    fn tables(&self) -> Vec<TableSpec> {
        vec![(KEPT, vec!["r1", "r3"])]
    }

    fn is_left_out(&self, table: &str) -> bool {
        let is_kept = |name: &String| name == table;
        table.starts_with(PREFIX) && !self.names.lock().in_use.iter().any(is_kept)
    }

    fn load<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            while self.names.lock().in_use.len() < IN_USE.start {
                self.create(session).await?;
            }
            Ok(())
        }
        .boxed()
    }

    fn step<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            let in_use = self.names.lock().in_use.len();
            match session.below(8) {
                0 if IN_USE.contains(&(in_use + 1)) || in_use == 0 => self.create(session).await,
                1 => match self.doom(session) {
                    Some(name) => self.delete(session, &name).await,
                    None => self.create(session).await,
                },
                _ => self.write(session).await,
            }
        }
        .boxed()
    }

    /// Deletes whatever is not in use: a command to make a table may have come after the one to delete it.
    fn check<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<Option<String>, Error>> {
        async move {
            let in_use = self.names.lock().in_use.clone();
            loop {
                let mut tables = session.client.tables().await?;
                tables.retain(|table| {
                    table.name.starts_with(PREFIX) && !in_use.contains(&table.name)
                });
                let Some(table) = tables.first() else { break };
                self.delete(session, &table.name).await?;
            }
            let tables = session.client.tables().await?;
            let is_ready = |name: &String| {
                let mut ready = tables.iter().filter(|table| table.ready);
                ready.any(|table| table.name == *name)
            };
            match in_use.into_iter().find(|name| !is_ready(name)) {
                // A master that has lost its state hears of it again; it is asked until then.
                Some(name) => Err(Error::UnknownTable { name }),
                None => Ok(None),
            }
        }
        .boxed()
    }
}

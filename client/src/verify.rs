//! A slow walk over everything that is stored, which proves that collection misses nothing.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use percolator_protocol::types::Rows;

use crate::Error;
use crate::admin::{Admin, REQUEST_TIMEOUT};
use crate::cluster::Tablet;
use crate::findings::{Finding, StoredPart, VerifiedPage};

/// So often servers are walked once more that have got tablets meanwhile, which may have been behind the walk each time.
const AGAIN_MAX: u32 = 3;
const PARTS: [StoredPart; 3] = [StoredPart::Records, StoredPart::Values, StoredPart::Index];

/// Where a walk is: it goes on from there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The tablet server, by name; those before it in order are done.
    pub server: String,
    /// 0: records, 1: long values, 2: the index.
    pub part: usize,
    /// Behind this key of the part.
    pub after: Bytes,
}

/// How much of a tablet was verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifiedCounts {
    /// Records of its cells.
    pub records: u64,
    /// Values with a key of their own.
    pub values: u64,
    /// Entries of the index of garbage.
    pub entries: u64,
    /// Those of them that are about to be collected.
    pub waiting: u64,
    /// What is wrong.
    pub wrong: u64,
}

/// A walk over all tablet servers.
#[derive(Clone, Debug, Default)]
pub struct Verification {
    /// By tablet server and tablet; tablet zero: rows of tablets that are not there any more.
    pub tablets: BTreeMap<(String, u64), VerifiedCounts>,
    /// The first hundred of each piece.
    pub findings: Vec<Finding>,
    /// Tablets that moved while the walk went on, again and again: some of their rows may not have been verified.
    pub missed: BTreeSet<u64>,
}

/// A tablet that is in use, and its owner.
struct OwnedTablet {
    id: u64,
    table: u32,
    rows: Rows,
    epoch: u64,
    server: String,
}

impl OwnedTablet {
    /// Whether its owner has had all of its rows since then, when places were these, in order. A new table has
    /// stayed: nothing of it was stored.
    fn has_stayed(&self, before: &[Self]) -> bool {
        let begins = |it: &Self| (it.table, &it.rows.start) <= (self.table, &self.rows.start);
        let first = before.partition_point(begins).saturating_sub(1);
        let ends = |it: &&Self| {
            it.table < self.table
                || (it.table == self.table && it.rows.start <= self.rows.start)
                || it.overlaps(self)
        };
        let near = before[first..].iter().take_while(ends);
        let mut overlapping = near.filter(|it| it.overlaps(self));
        overlapping.all(|it| {
            let is_back = it.id == self.id && it.rows == self.rows && it.epoch != self.epoch;
            it.server == self.server && !is_back
        })
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.table == other.table && self.rows.overlaps(&other.rows)
    }
}

impl Admin {
    /// Walks everything from a position on, and calls with the position after each piece. `pace` is how much longer
    /// than a piece took to wait before the next: 3 takes a quarter of a server's time at the most.
    ///
    /// # Errors
    /// [`Error::Invalid`]: there is no such position. A tablet server isn't reached. The last position that `at` got is the one to go on from.
    pub async fn verify_gc(
        &self,
        from: &Position,
        pace: u32,
        mut at: impl FnMut(&Position, &Verification),
    ) -> Result<Verification, Error> {
        if from.part >= PARTS.len() {
            return Err(Error::Invalid(format!(
                "there is no part {}: they are 0 to {}",
                from.part,
                PARTS.len() - 1
            )));
        }
        let mut done = Verification::default();
        let mut places = self.places().await?;
        let mut servers = self.tablet_servers().await?;
        servers.sort();
        if !from.server.is_empty() && !servers.contains(&from.server) {
            return Err(Error::Invalid(format!(
                "there is no tablet server {}: there are {}",
                from.server,
                servers.join(", ")
            )));
        }
        servers.retain(|server| *server >= from.server);
        for again in 0..=AGAIN_MAX {
            for server in servers {
                let begin = match again {
                    0 if server == from.server => from.clone(),
                    _ => Position {
                        server,
                        ..Position::default()
                    },
                };
                self.verify_server(begin, pace, &mut done, &mut at).await?;
            }
            // What a server gets behind the place where it is walked, or once it was, no other has any more.
            let now = self.places().await?;
            let moved: Vec<&OwnedTablet> =
                now.iter().filter(|it| !it.has_stayed(&places)).collect();
            done.missed = moved.iter().map(|it| it.id).collect();
            if moved.is_empty() || again == AGAIN_MAX {
                break;
            }
            let owners: BTreeSet<String> = moved.into_iter().map(|it| it.server.clone()).collect();
            done.forget(&owners);
            servers = owners.into_iter().collect();
            places = now;
        }
        Ok(done)
    }

    /// Walks one server, from a position in it on.
    async fn verify_server(
        &self,
        from: Position,
        pace: u32,
        done: &mut Verification,
        at: &mut impl FnMut(&Position, &Verification),
    ) -> Result<(), Error> {
        let mut position = from;
        while let Some(part) = PARTS.get(position.part).copied() {
            let begun = self.router.world.transport.now();
            let deadline = self.router.deadline(REQUEST_TIMEOUT);
            const DOING: &str = "verifying what is stored";
            let page = self
                .router
                .verify_page(&position.server, part, position.after.clone(), deadline)
                .await
                .map_err(|error| self.failed(deadline, DOING, error))?;
            position.after = page.resume.clone();
            done.add(&position.server, part, page);
            if position.after.is_empty() {
                position.part += 1;
                continue;
            }
            at(&position, done);
            let took = self.router.world.transport.now().saturating_sub(begun);
            self.router.world.transport.sleep(took * pace).await;
        }
        Ok(())
    }

    /// The tablets that are in use, ordered by table and start row.
    async fn places(&self) -> Result<Vec<OwnedTablet>, Error> {
        let mut tables = self.listing().await?.tables;
        tables.sort_by_key(|table| table.id);
        let tablets = tables.into_iter().flat_map(|table| {
            let owned = move |tablet: Tablet| OwnedTablet {
                id: tablet.id,
                table: table.id,
                rows: Rows {
                    start: tablet.start_row,
                    end: tablet.end_row,
                },
                epoch: tablet.epoch,
                server: tablet.server,
            };
            table.tablets.into_iter().map(owned)
        });
        Ok(tablets.collect())
    }
}

impl Verification {
    fn add(&mut self, server: &str, part: StoredPart, page: VerifiedPage) {
        for tablet in page.tablets {
            let place = (server.to_owned(), tablet.tablet);
            let known = self.tablets.entry(place).or_default();
            match part {
                StoredPart::Records => known.records += tablet.seen,
                StoredPart::Values => known.values += tablet.seen,
                StoredPart::Index => known.entries += tablet.seen,
            }
            known.waiting += tablet.waiting;
            known.wrong += tablet.wrong;
        }
        self.findings.extend(page.findings);
    }

    /// These servers are walked once more.
    fn forget(&mut self, servers: &BTreeSet<String>) {
        self.tablets
            .retain(|(server, _), _| !servers.contains(server));
        self.findings
            .retain(|finding| !servers.contains(&finding.server));
    }

    /// What is wrong, in all.
    pub fn wrong(&self) -> u64 {
        self.tablets.values().map(|tablet| tablet.wrong).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::VerifiedTablet;

    #[test]
    fn who_has_got_rows_meanwhile_is_walked_again() {
        let place =
            |id, table, rows: (&'static str, &'static str), epoch, server: &str| OwnedTablet {
                id,
                table,
                rows: Rows {
                    start: rows.0.into(),
                    end: rows.1.into(),
                },
                epoch,
                server: server.into(),
            };
        let before = [
            place(1, 1, ("", "h"), 1, "a"),
            place(2, 1, ("h", ""), 1, "b"),
            place(3, 2, ("", ""), 1, "b"),
        ];
        for (now, has_stayed) in [
            (place(1, 1, ("", "h"), 1, "a"), true),
            (place(1, 1, ("", "h"), 2, "b"), false),
            // It was away.
            (place(1, 1, ("", "h"), 3, "a"), false),
            // Cut, and one of the pieces moved.
            (place(1, 1, ("", "c"), 2, "a"), true),
            (place(4, 1, ("c", "h"), 2, "a"), true),
            (place(4, 1, ("c", "h"), 3, "b"), false),
            (place(5, 1, ("h", "k"), 2, "b"), true),
            // Merged.
            (place(6, 1, ("", ""), 4, "b"), false),
            (place(3, 2, ("", ""), 1, "b"), true),
            (place(7, 3, ("", ""), 1, "c"), true),
            (place(7, 0, ("", ""), 1, "c"), true),
        ] {
            let what = (now.id, now.epoch, &now.server);
            assert_eq!(now.has_stayed(&before), has_stayed, "{what:?}");
        }
    }

    #[test]
    fn pages_add_up_by_server_and_tablet() {
        let page = |seen| VerifiedPage {
            tablets: vec![VerifiedTablet {
                tablet: 3,
                seen,
                waiting: 2,
                wrong: 1,
            }],
            findings: Vec::new(),
            resume: Bytes::new(),
        };
        let mut all = Verification::default();
        all.add("tablet-0", StoredPart::Records, page(5));
        all.add("tablet-0", StoredPart::Records, page(6));
        all.add("tablet-0", StoredPart::Values, page(7));
        all.add("tablet-0", StoredPart::Index, page(8));
        all.add("tablet-1", StoredPart::Index, page(9));
        let of = |server: &str| &all.tablets[&(server.to_owned(), 3)];
        let expected = VerifiedCounts {
            records: 11,
            values: 7,
            entries: 8,
            waiting: 8,
            wrong: 4,
        };
        assert_eq!(*of("tablet-0"), expected);
        assert_eq!((of("tablet-1").entries, of("tablet-1").wrong), (9, 1));
    }
}

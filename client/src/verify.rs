//! A slow walk over everything that is stored, which proves that collection misses nothing.

use std::collections::BTreeMap;

use bytes::Bytes;
use percolator_protocol::types::{Cell, Timestamp};
use percolator_wire::v1;
use percolator_wire::v1::VerifyPart as Part;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::response::Body;

use crate::Error;
use crate::admin::{Admin, REQUEST_TIMEOUT};
use crate::resolver::unexpected;
use crate::router::{CallError, Deadline};

const PARTS: [Part; 3] = [Part::Records, Part::Values, Part::Index];

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

/// What was looked at of a tablet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
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

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The tablet server.
    pub server: String,
    /// The tablet.
    pub tablet: u64,
    /// The cell.
    pub cell: Cell,
    /// Of the record, value or entry.
    pub ts: Timestamp,
    /// In words.
    pub what: String,
}

/// A walk over all tablet servers.
#[derive(Clone, Debug, Default)]
pub struct Verification {
    /// By tablet server and tablet; tablet zero: rows of tablets that are not there any more.
    pub tablets: BTreeMap<(String, u64), Verified>,
    /// The first hundred of each piece.
    pub findings: Vec<Finding>,
}

impl Admin {
    /// Walks everything from a position on, and calls with the position after each piece. `pace` is how much longer
    /// than a piece took to wait before the next: 3 takes a quarter of a server's time at the most.
    ///
    /// # Errors
    /// [`Error::Invalid`]: there is no such position. A tablet server isn't reached. The position that was told last is the one to go on from.
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
        let mut servers = self.tablet_servers().await?;
        servers.sort();
        if !from.server.is_empty() && !servers.contains(&from.server) {
            return Err(Error::Invalid(format!(
                "there is no tablet server {}: there are {}",
                from.server,
                servers.join(", ")
            )));
        }
        for server in servers.into_iter().filter(|server| *server >= from.server) {
            let is_first = server == from.server;
            let first_part = if is_first { from.part } else { 0 };
            for (number, part) in PARTS.into_iter().enumerate().skip(first_part) {
                let mut after = if is_first && number == from.part {
                    from.after.clone()
                } else {
                    Bytes::new()
                };
                loop {
                    let begun = self.router.world.transport.now();
                    let deadline = self.router.deadline(REQUEST_TIMEOUT);
                    const DOING: &str = "verifying what is stored";
                    let looked = self
                        .verify_piece(&server, part, after, deadline)
                        .await
                        .map_err(|error| self.failed(deadline, DOING, error))?;
                    after = looked.resume.clone();
                    done.add(&server, part, looked);
                    let position = Position {
                        server: server.clone(),
                        part: number,
                        after: after.clone(),
                    };
                    if after.is_empty() {
                        break;
                    }
                    at(&position, &done);
                    let took = self.router.world.transport.now().saturating_sub(begun);
                    self.router.world.transport.sleep(took * pace).await;
                }
            }
        }
        Ok(done)
    }

    async fn verify_piece(
        &self,
        server: &str,
        part: Part,
        after: Bytes,
        deadline: Deadline,
    ) -> Result<v1::VerifyResponse, CallError> {
        let ask = |to| {
            Ask::Verify(v1::VerifyRequest {
                to: Some(to),
                part: part.into(),
                after: after.clone(),
            })
        };
        match self.router.ask_server(server, &ask, deadline).await? {
            Body::Verify(looked) => Ok(looked),
            _ => Err(unexpected()),
        }
    }
}

impl Verification {
    fn add(&mut self, server: &str, part: Part, looked: v1::VerifyResponse) {
        for tablet in looked.tablets {
            let place = (server.to_owned(), tablet.tablet_id);
            let known = self.tablets.entry(place).or_default();
            match part {
                Part::Values => known.values += tablet.seen,
                Part::Index => known.entries += tablet.seen,
                Part::Records | Part::Unspecified => known.records += tablet.seen,
            }
            known.waiting += tablet.waiting;
            known.wrong += tablet.wrong;
        }
        let finding = |finding: v1::VerifyFinding| {
            Some(Finding {
                server: server.to_owned(),
                tablet: finding.tablet_id,
                cell: finding.cell?.into(),
                ts: Timestamp::from_u64(finding.ts),
                what: finding.what,
            })
        };
        self.findings
            .extend(looked.findings.into_iter().filter_map(finding));
    }

    /// What is wrong, in all.
    pub fn wrong(&self) -> u64 {
        self.tablets.values().map(|tablet| tablet.wrong).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_add_up_by_server_and_tablet() {
        let piece = |seen| v1::VerifyResponse {
            tablets: vec![v1::VerifiedTablet {
                tablet_id: 3,
                seen,
                waiting: 2,
                wrong: 1,
            }],
            ..v1::VerifyResponse::default()
        };
        let mut all = Verification::default();
        all.add("tablet-0", Part::Records, piece(5));
        all.add("tablet-0", Part::Records, piece(6));
        all.add("tablet-0", Part::Values, piece(7));
        all.add("tablet-0", Part::Index, piece(8));
        all.add("tablet-1", Part::Index, piece(9));
        let of = |server: &str| &all.tablets[&(server.to_owned(), 3)];
        let expected = Verified {
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

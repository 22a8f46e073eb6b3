//! Requests about tables that are answered when tablet servers have done their part. Without a clock or a thread: the
//! server and the simulator both go on with them until they are done.

use std::time::Duration;

use percolator_wire::v1;

use crate::convert;
use crate::core::Directory;
use crate::events::Deletion;
use crate::refusal::Refusal;
use crate::state::TableState;

/// A request waits this long for tablet servers: less than clients wait for an answer, so that they hear whom it waits
/// for. What it began goes on after that.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(4);

/// How far a request is.
#[derive(Debug)]
pub enum Pending<R> {
    /// It is carried out.
    Done(R),
    /// To be gone on with when the directory has changed, and at this time of the directory's at the latest.
    Wait {
        /// That time.
        until: Duration,
    },
}

/// A table that is being created for somebody.
#[derive(Debug)]
pub struct Creation {
    name: String,
    cuts: Vec<Vec<u8>>,
    begun: Option<Begun>,
}

/// A table that is being deleted for somebody.
#[derive(Debug)]
pub struct Removal {
    request: v1::DeleteTableRequest,
    begun: Option<Begun>,
}

#[derive(Clone, Copy, Debug)]
struct Begun {
    table: u32,
    /// When the caller is told what it waits for.
    until: Duration,
}

impl Begun {
    fn of(table: u32, now: Duration) -> Self {
        Self {
            table,
            until: now + WAIT_MAX,
        }
    }

    /// It waits on, unless its time is over.
    fn wait<R>(
        self,
        directory: &Directory,
        now: Duration,
        what: impl FnOnce() -> String,
    ) -> Result<Pending<R>, Refusal> {
        if now < self.until {
            return Ok(Pending::Wait { until: self.until });
        }
        Err(Refusal::Pending {
            what: what(),
            waits_for: directory.waits_for(self.table, now),
        })
    }
}

impl Creation {
    /// As it is asked for.
    pub fn new(request: v1::CreateTableRequest) -> Self {
        let cuts = request.split_at.into_iter();
        Self {
            name: request.name,
            cuts: cuts.map(Vec::from).collect(),
            begun: None,
        }
    }

    /// Begins it, or looks how far it is.
    ///
    /// # Errors
    /// Those of [`Directory::create_table`]; [`Refusal::Pending`] when it takes long, and
    /// [`Refusal::DeletedMeanwhile`].
    pub fn go_on(
        &mut self,
        directory: &mut Directory,
        now: Duration,
    ) -> Result<Pending<v1::CreateTableResponse>, Refusal> {
        let begun = match self.begun {
            Some(begun) => begun,
            None => match directory.create_table(now, &self.name, &self.cuts) {
                Err(Refusal::Settling { until }) => return Ok(Pending::Wait { until }),
                created => *self.begun.insert(Begun::of(created?, now)),
            },
        };
        let name = &self.name;
        let table = directory.table(begun.table);
        match table.map(|table| table.state) {
            Some(TableState::Creating) => begun.wait(directory, now, || {
                format!("the table {name} is being created, and that goes on by itself")
            }),
            Some(TableState::Ready) => Ok(Pending::Done(v1::CreateTableResponse {
                table: table.map(|table| convert::table_info(begun.table, table)),
                tablets: convert::places(directory, now, begun.table)?,
            })),
            Some(TableState::Deleting) | None => {
                Err(Refusal::DeletedMeanwhile { name: name.clone() })
            }
        }
    }
}

impl Removal {
    /// As it is asked for.
    pub fn new(request: v1::DeleteTableRequest) -> Self {
        Self {
            request,
            begun: None,
        }
    }

    /// Begins it, or looks how far it is. Done, nobody can use the table any more, and its owners know that: also for a
    /// master that loses its state.
    ///
    /// # Errors
    /// Those of [`Directory::delete_table`]; [`Refusal::Pending`] if a server doesn't freeze its tablets in time.
    pub fn go_on(
        &mut self,
        directory: &mut Directory,
        now: Duration,
    ) -> Result<Pending<v1::DeleteTableResponse>, Refusal> {
        let begun = match self.begun {
            Some(begun) => begun,
            None => {
                let table = directory.delete_table(now, &Deletion::asked(&self.request))?;
                *self.begun.insert(Begun::of(table, now))
            }
        };
        let name = &self.request.name;
        let is_gone = directory.table(begun.table).is_none();
        if !is_gone && !directory.is_frozen(begun.table) {
            return begun.wait(directory, now, || {
                format!("the table {name} is being deleted, which goes on by itself")
            });
        }
        Ok(Pending::Done(v1::DeleteTableResponse {
            table: Some(v1::TableInfo {
                id: begun.table,
                name: name.clone(),
                state: v1::TableState::Deleting.into(),
            }),
        }))
    }
}

//! Requests about tables that are answered when tablet servers have done their part. Without a clock or a thread: the
//! server and the simulator both go on with them until they are done.

use std::time::Duration;

use crate::core::Directory;
use crate::events::Deletion;
use crate::refusal::Refusal;
use crate::state::TableState;

/// A request waits this long for tablet servers: less than the clients' request timeout, so that they learn which servers it waits
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

impl<R> Pending<R> {
    /// The same with another result.
    pub(crate) fn try_map<S>(
        self,
        convert: impl FnOnce(R) -> Result<S, Refusal>,
    ) -> Result<Pending<S>, Refusal> {
        Ok(match self {
            Self::Done(result) => Pending::Done(convert(result)?),
            Self::Wait { until } => Pending::Wait { until },
        })
    }
}

/// A request to create a table.
#[derive(Debug)]
pub struct Creation {
    name: String,
    cuts: Vec<Vec<u8>>,
    begun: Option<Begun>,
}

/// A request to delete a table.
#[derive(Debug)]
pub struct Removal {
    name: String,
    table: Option<u32>,
    accept_data_loss: bool,
    begun: Option<Begun>,
}

#[derive(Clone, Copy, Debug)]
struct Begun {
    table: u32,
    /// When the request is refused as pending.
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
    /// Of a table of this name, cut at these rows.
    pub fn new(name: String, cuts: Vec<Vec<u8>>) -> Self {
        Self {
            name,
            cuts,
            begun: None,
        }
    }

    /// Begins the creation, or checks how far it is. Returns the table when it is done.
    ///
    /// # Errors
    /// Those of [`Directory::create_table`]; [`Refusal::Pending`] when it takes long, and
    /// [`Refusal::DeletedMeanwhile`].
    pub fn go_on(
        &mut self,
        directory: &mut Directory,
        now: Duration,
    ) -> Result<Pending<u32>, Refusal> {
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
            Some(TableState::Ready) => Ok(Pending::Done(begun.table)),
            Some(TableState::Deleting) | None => {
                Err(Refusal::DeletedMeanwhile { name: name.clone() })
            }
        }
    }
}

impl Removal {
    /// As it is asked for.
    pub fn new(deletion: &Deletion<'_>) -> Self {
        Self {
            name: deletion.name.to_owned(),
            table: deletion.table,
            accept_data_loss: deletion.accept_data_loss,
            begun: None,
        }
    }

    /// Begins the deletion, or checks how far it is. Returns the table when it is done: no client can use it any more, and its owners
    /// know that, also for a master that loses its state.
    ///
    /// # Errors
    /// Those of [`Directory::delete_table`]; [`Refusal::Pending`] if a server doesn't freeze its tablets in time.
    pub fn go_on(
        &mut self,
        directory: &mut Directory,
        now: Duration,
    ) -> Result<Pending<u32>, Refusal> {
        let begun = match self.begun {
            Some(begun) => begun,
            None => {
                let deletion = Deletion {
                    name: &self.name,
                    table: self.table,
                    accept_data_loss: self.accept_data_loss,
                };
                let table = directory.delete_table(now, &deletion)?;
                *self.begun.insert(Begun::of(table, now))
            }
        };
        let name = &self.name;
        let is_gone = directory.table(begun.table).is_none();
        if !is_gone && !directory.is_frozen(begun.table) {
            return begun.wait(directory, now, || {
                format!("the table {name} is being deleted, which goes on by itself")
            });
        }
        Ok(Pending::Done(begun.table))
    }
}

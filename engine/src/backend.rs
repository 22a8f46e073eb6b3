//! The store below the write-ahead log: it can be read, changed and brought onto the device.

use std::ops::ControlFlow;
use std::time::Duration;

use crate::{Batch, Column, Direction, Error, Key, Read, Snapshot, Value};

/// A store with snapshots, as [`crate::Durable`] needs one behind its log.
pub trait Backend: Read + Send + Sync + 'static {
    /// Applies the batches in order; each becomes visible as a whole, and so may the whole group.
    /// Only one caller at a time. After an error reads are refused: a batch may be there in part.
    fn apply(&self, group: &[Batch]) -> Result<(), Error>;

    /// The store as it is between two calls of `apply`, or between two batches of one.
    fn snapshot(&self) -> Result<Box<dyn Snapshot>, Error>;

    /// Brings everything applied before this call onto the device. Applies may go on meanwhile. Where that
    /// is much work it goes in steps, with `rest` between them.
    ///
    /// # Errors
    /// [`Error::Full`]: there's no room, which was found out before anything was written that can't be
    /// written again; it can be tried again later. Anything else is the end of the engine.
    fn checkpoint(&self, rest: StepHook<'_>) -> Result<Checkpoint, Error>;

    /// Size in bytes: on disk, or of keys and values if it is in memory.
    fn size_bytes(&self) -> u64;

    /// Number of snapshots alive.
    fn live_snapshots(&self) -> u64;
}

/// A page of a store, and what is in it.
#[derive(Clone, Copy, Debug)]
pub struct PageSize {
    /// For puts.
    pub bytes: usize,
    /// The bytes of a put besides its key and value.
    pub put_bytes: usize,
}

/// A function that is called between the steps of long background work, with what the last one took. It returns when the
/// next step may begin, so that requests get the processor and the device in between, or breaks the work off.
pub type StepHook<'a> = &'a dyn Fn(Step) -> ControlFlow<()>;

/// A step of long work in the background.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// How long it took.
    pub took: Duration,
    /// How much of the time there is left until others will have to wait for the end of this work, about: 1 is all of
    /// it, 0 none.
    pub leisure: f64,
}

/// The result of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checkpoint {
    /// All that was applied before is on the device: the log up to there is not needed any more.
    Durable,
    /// The store lives in memory: the log is all there is, and stays.
    Volatile,
    /// It was broken off, and the next one goes on: the log stays.
    BrokenOff,
}

/// A store without snapshots, as [`crate::Versioned`] needs one to add them.
///
/// `apply` is called by one thread at a time and never together with a read; `checkpoint` and
/// `size_bytes` may run together with anything.
pub trait Store: Send + Sync + 'static {
    /// The value of `key`.
    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Value>, Error>;

    /// Adds pairs of `[start, end)` to `into`, in the order of `direction`, until there are no more
    /// or some `limit` of them were added; true if there are no more. An empty `end` means to the end
    /// of the column.
    fn chunk(
        &self,
        column: Column,
        start: &[u8],
        end: &[u8],
        direction: Direction,
        limit: usize,
        into: &mut Vec<(Key, Value)>,
    ) -> Result<bool, Error>;

    /// The first pair of `[start, end)`.
    fn first(
        &self,
        column: Column,
        start: &[u8],
        end: &[u8],
    ) -> Result<Option<(Key, Value)>, Error>;

    /// Waits until there's room for more, in a store that has to be waited for. Called before `apply`,
    /// while reads go on.
    fn wait_for_room(&self) {}

    /// Puts and deletes that [`crate::Buffered`] gives to one `apply` of a checkpoint: as many as a request may wait
    /// for. The default is some 200 us of sled's.
    fn step_ops(&self) -> usize {
        16
    }

    /// How many bytes of sorted puts make a full page of the store, where its pages are fuller if these are applied together:
    /// then steps of a checkpoint end with whole pages. And what a put needs in a page besides its key and value.
    fn page(&self) -> Option<PageSize> {
        None
    }

    /// Whether the store has room for a change of so many bytes, with all that it writes besides. For
    /// stores that a full disk would break: to be asked before `apply`.
    ///
    /// # Errors
    /// [`Error::Full`].
    fn check_room(&self, _bytes: usize) -> Result<(), Error> {
        Ok(())
    }

    /// Writes what was applied to the device, where the store would keep it back until there is much of it. Called
    /// between the steps of a checkpoint: kernels let nobody else have a processor for milliseconds while they write
    /// much at once.
    fn write_out(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Applies all batches in order.
    fn apply(&self, group: &[Batch]) -> Result<(), Error>;

    /// As [`Backend::checkpoint`].
    fn checkpoint(&self, rest: StepHook<'_>) -> Result<Checkpoint, Error>;

    /// As [`Backend::size_bytes`].
    fn size_bytes(&self) -> u64;
}

/// A chunk of a scan ends when it has passed this many bytes, whatever the number of pairs.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;

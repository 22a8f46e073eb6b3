//! The limits of a tablet server's memory and responses. Above them callers wait, are refused as busy, or get the rest with
//! their next request.

use percolator_protocol::mutants::{self, Mutant};

/// The limits. The defaults are for servers; the simulator has small ones, so that they are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of newest versions of cells that are read, about: twice as many at the most. Default: 1 MiB;
    /// a server gives a quarter of its `cacheSize`.
    pub cache_bytes: u64,
    /// Marks of the highest snapshots that have read a row, and as many of the highest write records of a
    /// cell, 8 bytes each; a power of two. Cells that share one look newer than they are. Default: 65,536.
    pub marks: usize,
    /// Requests that write and wait for rows or for the disk; as many reads that wait for the disk, and as many
    /// requests of large transactions that wait for their turn.
    /// Default: 65,536.
    pub waiting: usize,
    /// Bytes of requests that wait for rows, and of reads that wait for the disk: one more request may go over it. The same for
    /// requests of large transactions that wait for their turn, which delay no other. Default: 64 MiB.
    pub queued_bytes: usize,
    /// Bytes of batches that are decided and not yet on their way to the disk: one more may go over it.
    /// Default: 128 MiB.
    pub decided_bytes: usize,
    /// Bytes of batches that go to the disk together; a larger one goes alone. Default: 32 MiB.
    pub group_bytes: usize,
    /// Bytes of values after which an answer to a get ends: one more value may go over it. Default: 4 MiB.
    pub get_bytes: usize,
    /// Cells in one answer to a scan. Default: 4,096.
    pub scan_cells: usize,
    /// Bytes after which an answer to a scan ends: one more cell may go over it. Default: 1 MiB.
    pub scan_bytes: usize,
    /// Versions that one scan request reads before it responds with what it has, so that no request waits long behind it.
    /// Default: 2,048.
    pub scan_records: usize,
    /// Locks that a scan loads at a time. Default: 1,024.
    pub scan_locks: usize,
    /// Locks of one transaction that one request resolves on an idle server. Default: 64.
    pub resolve_locks: usize,
    /// Cells of large transactions that may be written and resolved in a second beside other requests. Default: 1,600;
    /// a server takes 800 for each processor that it may use.
    pub large_cells_a_second: u32,
    /// Versions of one cell that a scan reads one by one: a look-up costs as much as some of them.
    /// Default: 64.
    pub scan_records_of_one_cell: usize,
    /// Bytes of keys and values after which a chunk of a tablet that moves to another server ends: one more entry may go over
    /// it. Default: 1 MiB.
    pub move_bytes: usize,
    /// Records, long values or entries of the index in one piece of a verification: some milliseconds. Default: 1,000.
    pub verify_pairs: usize,
    /// A table's changes are remembered for its followers until a commit lies this far above their last scan, in milliseconds.
    /// Default: 60,000.
    pub followed_ms: u64,
    /// Whether garbage is indexed. Without it nothing is collected: for the benchmark of its price.
    pub index_garbage: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            cache_bytes: 1 << 20,
            marks: 1 << 16,
            waiting: 1 << 16,
            queued_bytes: 64 << 20,
            decided_bytes: 128 << 20,
            group_bytes: 32 << 20,
            get_bytes: 4 << 20,
            scan_cells: 4096,
            scan_bytes: 1 << 20,
            scan_records: 2048,
            scan_locks: 1024,
            resolve_locks: 64,
            large_cells_a_second: 1_600,
            scan_records_of_one_cell: 64,
            move_bytes: 1 << 20,
            verify_pairs: 1_000,
            followed_ms: 60_000,
            index_garbage: true,
        }
    }
}

impl Limits {
    /// Whether no more requests may wait.
    pub(crate) fn no_more_requests(&self, waiting: usize) -> bool {
        waiting >= self.waiting && !mutants::on(Mutant::RequestsUnbounded)
    }

    /// Whether no more reads may wait for the disk.
    pub(crate) fn no_more_reads(&self, waiting: usize) -> bool {
        waiting >= self.waiting && !mutants::on(Mutant::HeldReadsUnbounded)
    }

    /// Whether waiting requests have reached their limit of bytes.
    pub(crate) fn enough_queued(&self, bytes: usize) -> bool {
        bytes >= self.queued_bytes && !mutants::on(Mutant::QueuedBytesUnbounded)
    }

    /// Whether decided batches have reached their limit of bytes.
    pub(crate) fn enough_decided(&self, bytes: usize) -> bool {
        bytes >= self.decided_bytes && !mutants::on(Mutant::DecidedBytesUnbounded)
    }

    /// Whether batches of this many bytes may go to the disk together.
    pub(crate) fn is_a_group(&self, bytes: usize) -> bool {
        bytes <= self.group_bytes || mutants::on(Mutant::GroupsUnbounded)
    }

    /// Whether an answer to a scan is full.
    pub(crate) fn ends_scan(&self, bytes: usize, bytes_max: usize) -> bool {
        bytes >= bytes_max && !mutants::on(Mutant::ScansUnbounded)
    }
}

/// A number of things in memory, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// How many there are.
    pub count: usize,
    /// Bytes of all of them.
    pub bytes: usize,
    /// Bytes of the largest one.
    pub largest_bytes: usize,
}

impl Amount {
    /// The amount of things with these sizes, in bytes.
    pub fn of(sizes: impl Iterator<Item = usize>) -> Self {
        sizes.fold(Self::default(), |sum, bytes| Self {
            count: sum.count + 1,
            bytes: sum.bytes + bytes,
            largest_bytes: sum.largest_bytes.max(bytes),
        })
    }
}

/// The memory in use, as far as [`Limits`] bound it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Requests of large transactions that wait for their turn.
    pub flushes: Amount,
    /// Requests that wait for rows.
    pub queued: Amount,
    /// Reads that wait for the disk.
    pub reads: Amount,
    /// Decided batches that wait for the disk.
    pub decided: Amount,
    /// Batches on their way to the disk.
    pub group: Amount,
    /// The newest versions of cells.
    pub cache_bytes: usize,
    /// Tablets with a mark of scans.
    pub scan_marks: usize,
    /// Tablets that it has.
    pub tablets: usize,
}

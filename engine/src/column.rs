//! The columns of a store.

/// One ordered key space. All columns of an engine share its batches and its snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Column {
    /// A server's own state: its tablets, its points.
    Meta,
    /// Locks of transactions under way.
    Lock,
    /// Write records: which version a commit made visible.
    Write,
    /// The values themselves.
    Data,
    /// The index of garbage: entries that may be collected, in order of time.
    Garbage,
    /// Cells of observed columns that changed, until an observer has acknowledged that.
    Notify,
}

impl Column {
    /// Every column, in the order of [`Column::prefix`].
    pub const ALL: [Column; 6] = [
        Column::Meta,
        Column::Lock,
        Column::Write,
        Column::Data,
        Column::Garbage,
        Column::Notify,
    ];

    /// The byte that stands for the column on disk. Part of the format: never change one. The gaps
    /// are for columns to come, and all are below 0x80: the log uses the high bit.
    pub const fn prefix(self) -> u8 {
        match self {
            Column::Meta => 0x10,
            Column::Lock => 0x20,
            Column::Write => 0x30,
            Column::Data => 0x40,
            Column::Garbage => 0x50,
            Column::Notify => 0x60,
        }
    }

    /// The column of a byte made by [`Column::prefix`].
    pub fn from_prefix(prefix: u8) -> Option<Column> {
        Column::ALL
            .into_iter()
            .find(|column| column.prefix() == prefix)
    }

    /// Lower case name, for messages and for folders.
    pub const fn name(self) -> &'static str {
        match self {
            Column::Meta => "meta",
            Column::Lock => "lock",
            Column::Write => "write",
            Column::Data => "data",
            Column::Garbage => "garbage",
            Column::Notify => "notify",
        }
    }

    /// Position in [`Column::ALL`].
    pub(crate) const fn index(self) -> usize {
        match self {
            Column::Meta => 0,
            Column::Lock => 1,
            Column::Write => 2,
            Column::Data => 3,
            Column::Garbage => 4,
            Column::Notify => 5,
        }
    }
}

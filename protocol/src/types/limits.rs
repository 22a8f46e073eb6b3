//! The limits of requests and transactions. Above these a person gets an error that names the
//! limit; below them memory is bounded.

/// Longest row, in bytes; the shortest is 1.
pub const ROW_BYTES_MAX: usize = 4096;
/// Longest column name, in bytes; the shortest is 0.
pub const COLUMN_BYTES_MAX: usize = 1024;
/// Longest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 4 << 20;
/// Values up to this many bytes travel inside lock and write records, so that reading them takes
/// one lookup instead of two.
pub const SHORT_VALUE_BYTES_MAX: usize = 255;
/// Cells in one request.
pub const REQUEST_CELLS_MAX: usize = 65_536;
/// Bytes of keys and values in one request.
pub const REQUEST_BYTES_MAX: usize = 16 << 20;
/// The most that a transaction may hold in memory before its servers have taken it, in bytes of cells as
/// [`BUFFERED_CELL_BYTES`] counts them.
pub const TRANSACTION_BYTES_MAX: usize = 64 << 20;
/// The overhead of a buffered cell beside its row, column and value, about: pipelined transactions of small cells are
/// bounded too.
pub const BUFFERED_CELL_BYTES: usize = 128;

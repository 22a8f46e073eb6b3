//! Which ids of tables and tablets a directory gives.

/// A directory gives ids from a block that it picks at random: clients and servers of another cluster may be on their way
/// here with ids of theirs; and where it is rebuilt, servers that are away may hold tablets with ids that nobody has told
/// it of.
pub(crate) const TABLE_BLOCK_BITS: u32 = 16;
pub(crate) const TABLET_BLOCK_BITS: u32 = 32;

/// The lower half of the blocks is for new directories, the upper one for rebuilt ones: those never have a block of their
/// cluster's first one.
#[derive(Clone, Copy)]
pub(crate) enum Half {
    New,
    Rebuilt,
}

/// The first id of a table, and of a tablet.
pub(crate) fn first(half: Half, random: u128) -> (u32, u64) {
    let [low, high, a, b, c, d, ..] = random.to_le_bytes();
    // All ids are below 2^53: readers of JSON round larger numbers.
    let (tables, tablets) = (u16::MAX >> 1, u32::MAX >> 12);
    let upper = u16::from(matches!(half, Half::Rebuilt));
    let block = (u16::from_le_bytes([low, high]) & tables).min(tables - 1);
    let block = block + upper * (tables + 1);
    // Zero is no id.
    let table = (u32::from(block) << TABLE_BLOCK_BITS) + 1;
    let block = (u32::from_le_bytes([a, b, c, d]) & tablets).min(tablets - 1);
    let block = block + u32::from(upper) * (tablets + 1);
    (table, (u64::from(block) << TABLET_BLOCK_BITS) + 1)
}

//! Which ids of tables and tablets a directory gives.
//!
//! A cluster's ids begin at a block that is picked at random: clients and servers of another cluster may be on their way
//! here with ids of theirs. A rebuilt state goes on in a later block: commands of the master that lost its state may be on
//! their way, with ids that no server has reported.

const TABLE_BLOCK_BITS: u32 = 16;
const TABLET_BLOCK_BITS: u32 = 32;

/// Blocks of new clusters lie below these, so that there is always a later one.
const TABLE_BLOCKS: u16 = u16::MAX >> 1;
/// All ids are below 2^53: readers of JSON round larger numbers.
const TABLET_BLOCKS: u32 = u32::MAX >> 12;

/// The first id of a table, and of a tablet, of a new cluster.
pub(crate) fn first(random: u128) -> (u32, u64) {
    let [low, high, a, b, c, d, ..] = random.to_le_bytes();
    let block = (u16::from_le_bytes([low, high]) & TABLE_BLOCKS).min(TABLE_BLOCKS - 1);
    // Zero is no id.
    let table = (u32::from(block) << TABLE_BLOCK_BITS) + 1;
    let block = (u32::from_le_bytes([a, b, c, d]) & TABLET_BLOCKS).min(TABLET_BLOCKS - 1);
    let tablet = (u64::from(block) << TABLET_BLOCK_BITS) + 1;
    (table, tablet)
}

/// The first ids of a later block than these. `None`: all blocks are used up.
pub(crate) fn after(table: u32, tablet: u64) -> Option<(u32, u64)> {
    let table_block = (table >> TABLE_BLOCK_BITS) + 1;
    let tablet_block = (tablet >> TABLET_BLOCK_BITS) + 1;
    let has_room =
        table_block <= u32::from(u16::MAX) && tablet_block <= 2 * u64::from(TABLET_BLOCKS);
    has_room.then(|| {
        (
            (table_block << TABLE_BLOCK_BITS) + 1,
            (tablet_block << TABLET_BLOCK_BITS) + 1,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_block_is_above_every_id_of_those_before() {
        let (table, tablet) = first(u128::MAX);
        let seen = (table + 77, tablet + 99);
        let (table, tablet) = after(seen.0, seen.1).unwrap();
        assert!(table > seen.0 + 60_000 && table < seen.0 + (1 << 16) + 1);
        assert!(tablet > seen.1 && tablet < 1 << 53);
        assert_eq!(after(0, 0), Some(((1 << 16) + 1, (1 << 32) + 1)));
        assert_eq!(after(u32::MAX, 1), None);
        assert_eq!(after(1, 1 << 53), None);
    }
}

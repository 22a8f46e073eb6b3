//! What a table's name and its cuts may be.

use crate::refusal::Refusal;

/// The most bytes that a row at which a table is cut may have.
pub const CUT_BYTES_MAX: usize = 4_096;
/// The most cuts that a new table may have: it then has one tablet more.
pub const CUTS_MAX: usize = 1_023;
/// The most bytes that a name of a table or server may have.
pub const NAME_BYTES_MAX: usize = 64;

/// 1 to 64 of a-z, 0-9, '_', '.' and '-', starting with a letter or digit.
pub(crate) fn is_name(name: &str) -> bool {
    is_name_of_at_most(NAME_BYTES_MAX, name)
}

/// The same with another number of bytes at the most.
pub(crate) fn is_name_of_at_most(bytes: usize, name: &str) -> bool {
    let outer = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    (1..=bytes).contains(&name.len())
        && name.bytes().next().is_some_and(outer)
        && name.bytes().all(|b| outer(b) || b"_.-".contains(&b))
}

pub(crate) fn check_table_name(name: &str) -> Result<(), Refusal> {
    if is_name(name) {
        Ok(())
    } else {
        Err(Refusal::TableName { name: name.into() })
    }
}

/// Cuts are strictly increasing, not empty, and neither too long nor too many.
pub(crate) fn check_cuts(cuts: &[Vec<u8>]) -> Result<(), Refusal> {
    if cuts.len() > CUTS_MAX {
        return Err(Refusal::TooManyCuts { cuts: cuts.len() });
    }
    for (index, cut) in cuts.iter().enumerate() {
        let wrong = if cut.is_empty() {
            "it is empty, and a tablet begins there anyway"
        } else if cut.len() > CUT_BYTES_MAX {
            "it has more than 4096 bytes"
        } else if index > 0 && *cut <= cuts[index - 1] {
            "it is not greater than the one before"
        } else {
            continue;
        };
        return Err(Refusal::Cut { index, wrong });
    }
    Ok(())
}

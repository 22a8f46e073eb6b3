//! Whether a key may be in a set, in memory whose size doesn't depend on how large the set is.

/// A counting filter over hashes. It never says no of a hash that was added and not removed since.
///
/// Memory: 32 KiB, and 1 KiB more for each of the first hashes, up to 4 MiB. With 100,000 hashes in it, it says yes of one in 40
/// others; with a million, of one in 5; beyond ten million, of nearly all.
#[derive(Debug)]
pub struct CountingFilter {
    /// How many hashes fall on each place, page by page; none: on no place of that page. A count at its maximum stays there:
    /// it may stand for more.
    pages: Vec<Option<Box<Page>>>,
    added: usize,
}

type Page = [u8; PAGE];

/// A power of two.
const PLACES: usize = 4 << 20;
/// Places that are allocated together, when the first of them is used: a server that has just begun has few locks.
const PAGE: usize = 1 << 10;

impl Default for CountingFilter {
    fn default() -> Self {
        Self {
            pages: vec![None; PLACES / PAGE],
            added: 0,
        }
    }
}

impl CountingFilter {
    /// Whether `hash` may be in the set.
    pub fn may_contain(&self, hash: u64) -> bool {
        let (page, at) = place(hash);
        self.pages[page].as_ref().is_some_and(|page| page[at] > 0)
    }

    /// Adds `hash`, which may be in the set already: it has to be removed as often.
    pub fn add(&mut self, hash: u64) {
        let (page, at) = place(hash);
        let count = &mut self.pages[page].get_or_insert_with(|| Box::new([0; PAGE]))[at];
        *count = count.saturating_add(1);
        self.added += 1;
    }

    /// Removes `hash`, which was added.
    pub fn remove(&mut self, hash: u64) {
        let (page, at) = place(hash);
        if let Some(page) = &mut self.pages[page]
            && page[at] < u8::MAX
        {
            page[at] = page[at].saturating_sub(1);
        }
        self.added = self.added.saturating_sub(1);
    }

    /// How many hashes are in the set.
    pub fn len(&self) -> usize {
        self.added
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.added == 0
    }
}

/// The page, and the place on it.
fn place(hash: u64) -> (usize, usize) {
    // The upper half is mixed in: hashes of short keys may differ there alone.
    let place = ((hash ^ (hash >> 32)) as usize) & (PLACES - 1);
    (place / PAGE, place % PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(of: u64) -> u64 {
        use std::hash::{DefaultHasher, Hasher as _};
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(of);
        hasher.finish()
    }

    #[test]
    fn what_was_added_is_found_until_it_is_removed() {
        let mut filter = CountingFilter::default();
        let others = |filter: &CountingFilter| {
            (1_000_000..1_010_000)
                .filter(|n| filter.may_contain(hash(*n)))
                .count()
        };
        (0..100_000).for_each(|n| filter.add(hash(n)));
        assert!((0..100_000).all(|n| filter.may_contain(hash(n))));
        assert_eq!(filter.len(), 100_000);
        let wrong = others(&filter);
        assert!((100..500).contains(&wrong), "{wrong} of 10,000");
        (0..100_000).for_each(|n| filter.remove(hash(n)));
        assert!(filter.is_empty());
        assert_eq!(others(&filter), 0);
    }

    #[test]
    fn a_count_that_was_full_says_yes_from_then_on() {
        let mut filter = CountingFilter::default();
        for _ in 0..300 {
            filter.add(7);
        }
        for _ in 0..300 {
            filter.remove(7);
        }
        assert!(filter.may_contain(7));
        assert!(filter.is_empty());
    }
}

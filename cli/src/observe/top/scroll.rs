//! A list that may be longer than its room on the terminal: which line is chosen, and which ones are seen.

use std::ops::Range;

use ratatui::crossterm::event::KeyCode;

/// Of a list whose length comes and goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scroll {
    /// Which line is chosen.
    pub(crate) chosen: usize,
    /// The first one that is seen.
    first: usize,
    /// How many lines there was room for when it was drawn last.
    room: usize,
}

impl Scroll {
    /// Moves in a list of so many lines. Returns whether it is a key for that.
    pub(crate) fn key(&mut self, key: KeyCode, all: usize) -> bool {
        let page = self.room.max(1);
        let chosen = match key {
            KeyCode::Up | KeyCode::Char('k') => self.chosen.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.chosen + 1,
            KeyCode::PageUp => self.chosen.saturating_sub(page),
            KeyCode::PageDown => self.chosen + page,
            KeyCode::Home => 0,
            KeyCode::End => all,
            _ => return false,
        };
        self.chosen = chosen.min(all.saturating_sub(1));
        true
    }

    /// What is seen of so many lines where there is room for these: the chosen one is among them, and no room stays
    /// empty that a line could fill.
    pub(crate) fn fit(&mut self, all: usize, room: usize) -> Range<usize> {
        self.room = room;
        self.chosen = self.chosen.min(all.saturating_sub(1));
        let least = (self.chosen + 1).saturating_sub(room);
        let most = self.chosen.min(all.saturating_sub(room)).max(least);
        self.first = self.first.clamp(least, most);
        self.first..all.min(self.first + room)
    }
}

/// For people: from 1 on.
pub(crate) fn words(seen: &Range<usize>, all: usize) -> String {
    if seen.is_empty() {
        format!("none of {all}")
    } else {
        format!("{}-{} of {all}", seen.start + 1, seen.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_line_is_seen_wherever_keys_lead() {
        let mut list = Scroll::default();
        assert_eq!(list.fit(40, 10), 0..10);
        for (keys, chosen, seen) in [
            (vec![KeyCode::Up], 0, 0..10),
            (vec![KeyCode::Down; 9], 9, 0..10),
            (vec![KeyCode::Char('j')], 10, 1..11),
            (vec![KeyCode::Up; 9], 1, 1..11),
            (vec![KeyCode::PageDown], 11, 2..12),
            (vec![KeyCode::End], 39, 30..40),
            (vec![KeyCode::Down], 39, 30..40),
            (vec![KeyCode::PageUp], 29, 29..39),
            (vec![KeyCode::PageUp; 9], 0, 0..10),
            (vec![KeyCode::End, KeyCode::Home], 0, 0..10),
        ] {
            for key in &keys {
                assert!(list.key(*key, 40));
                list.fit(40, 10);
            }
            assert_eq!((list.chosen, list.fit(40, 10)), (chosen, seen), "{keys:?}");
        }
        assert!(!list.key(KeyCode::Char('s'), 40));
    }

    #[test]
    fn lists_and_terminals_that_shrink_leave_no_hole() {
        let mut list = Scroll::default();
        list.fit(40, 10);
        list.key(KeyCode::End, 40);
        assert_eq!(list.fit(40, 10), 30..40);
        assert_eq!(list.fit(12, 10), 2..12, "lines have gone");
        assert_eq!(list.fit(12, 4), 8..12, "less room");
        assert_eq!(list.fit(12, 20), 0..12, "more room");
        assert_eq!(words(&list.fit(12, 4), 12), "9-12 of 12");
        assert_eq!(words(&list.fit(0, 4), 0), "none of 0");
        assert_eq!(list.fit(3, 0).len(), 0, "no room at all");
    }
}

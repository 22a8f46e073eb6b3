use super::*;

fn placement(owner: &str, start: &'static str, end: &'static str) -> Placement {
    Placement {
        table: 1,
        rows: Rows {
            start: start.into(),
            end: end.into(),
        },
        epoch: 1,
        owner: owner.into(),
        made: true,
        state: TabletState::Serving,
        listed: true,
    }
}

fn ids<'a>(found: impl Iterator<Item = (u64, &'a Placement)>) -> Vec<u64> {
    found.map(|(id, _)| id).collect()
}

#[test]
fn tablets_are_found_by_their_owner_and_by_their_rows() {
    let mut placements = Placements::default();
    for (id, owner, start, end) in [(1, "a", "", "g"), (2, "b", "g", "p"), (3, "a", "p", "")] {
        placements.place(id, placement(owner, start, end));
    }
    assert_eq!(ids(placements.of_owner("a")), [1, 3]);
    assert_eq!(ids(placements.of_table(1)), [1, 2, 3]);
    let in_tables = |tables: &[u32]| {
        let tables = tables.iter().copied().collect();
        ids(placements.of_owner_in("a", &tables))
    };
    assert_eq!(in_tables(&[0, 1, 2]), [1, 3]);
    assert_eq!(in_tables(&[0, 2]), [0_u64; 0]);
    assert_eq!(ids(placements.of_table(2)), [0_u64; 0]);
    let rows = |start: &'static str, end: &'static str| Rows {
        start: start.into(),
        end: end.into(),
    };
    let found = |start, end| ids(placements.overlapping(1, &rows(start, end)));
    assert_eq!(found("h", "i"), [2]);
    assert_eq!(found("a", "g"), [1]);
    assert_eq!(found("f", "h"), [1, 2]);
    assert_eq!(found("", ""), [1, 2, 3]);
    assert_eq!(found("z", ""), [3]);
}

#[test]
fn what_is_placed_takes_the_rows_of_others() {
    let mut placements = Placements::default();
    placements.place(1, placement("a", "", "m"));
    placements.place(2, placement("a", "m", ""));
    placements.place(3, placement("b", "k", "n"));
    assert_eq!(ids(placements.iter()), [3]);
    assert_eq!(placements.count_of_owner("a"), 0);
    // The same one, elsewhere and with other rows.
    placements.place(3, placement("a", "", ""));
    assert_eq!(ids(placements.of_owner("a")), [3]);
    assert_eq!(ids(placements.of_owner("b")), [0_u64; 0]);
    assert_eq!(ids(placements.of_table(1)), [3]);
    assert_eq!(placements.remove(3).map(|it| it.owner), Some("a".into()));
    assert!(placements.is_empty() && placements.by_table.is_empty());
}

#[test]
fn a_table_is_covered_when_its_tablets_leave_no_gap() {
    for (tablets, gaps) in [
        (&[][..], &[("", "")][..]),
        (&[("", "")], &[]),
        (&[("", "m"), ("m", "")], &[]),
        (&[("", "m"), ("n", "")], &[("m", "n")]),
        (&[("", "m")], &[("m", "")]),
        (&[("m", "")], &[("", "m")]),
        (
            &[("c", "d"), ("f", "g")],
            &[("", "c"), ("d", "f"), ("g", "")],
        ),
    ] {
        let mut placements = Placements::default();
        for (id, (start, end)) in (1..).zip(tablets) {
            placements.place(id, placement("a", start, end));
        }
        let found = placements.gaps(1);
        let found: Vec<_> = found
            .iter()
            .map(|it| (&it.start[..], &it.end[..]))
            .collect();
        let expected: Vec<_> = gaps
            .iter()
            .map(|(start, end)| (start.as_bytes(), end.as_bytes()))
            .collect();
        assert_eq!(found, expected, "{tablets:?}");
        assert_eq!(placements.is_covered(1), gaps.is_empty(), "{tablets:?}");
        assert_eq!(placements.is_complete(1), gaps.is_empty(), "{tablets:?}");
        if placements.update(1, false, TabletState::Serving) {
            assert!(!placements.is_complete(1), "{tablets:?}");
        }
    }
}

#[test]
fn counts_follow_every_change() {
    let mut placements = Placements::default();
    let mut random = 1_u64;
    let mut next = |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) % below
    };
    let cuts = ["", "c", "f", "k", "p", "t"];
    for _ in 0..5_000 {
        let id = 1 + next(8);
        let state = [TabletState::Serving, TabletState::Frozen][next(2) as usize];
        match next(5) {
            0 => drop(placements.remove(id)),
            1 => drop(placements.update(id, next(2) == 0, state)),
            2 => placements.set_listed(id, next(2) == 0),
            3 => placements.forget_list(["a", "b"][next(2) as usize]),
            _ => {
                let start = next(cuts.len() as u64) as usize;
                let end = cuts.get(start + 1 + next(2) as usize).unwrap_or(&"");
                let tablet = Placement {
                    state,
                    ..placement(["a", "b"][next(2) as usize], cuts[start], end)
                };
                placements.place(id, tablet);
            }
        }
        let mut found = ids(placements.unlisted());
        found.sort_unstable();
        assert_eq!(found, ids(placements.iter().filter(|(_, it)| !it.listed)));
        let all: Vec<_> = placements.iter().map(|(_, it)| it.clone()).collect();
        for (owner, listed) in placements.listed() {
            let of_it = |it: &&Placement| it.owner == owner && it.listed;
            let count = |is: fn(&&Placement) -> bool| all.iter().filter(of_it).filter(is).count();
            let counted = ListedTablets {
                unmade: count(|it| !it.made),
                frozen: count(|it| it.made && it.state == TabletState::Frozen),
                serving: count(|it| it.made && it.state == TabletState::Serving),
            };
            assert_eq!(listed, counted, "{owner}");
        }
        let counts = placements.counts().map(|(_, count)| count);
        assert_eq!(counts.sum::<usize>(), all.len());
        let in_use = |it: &&Placement| it.state != TabletState::Frozen;
        assert_eq!(placements.is_covered(1), placements.gaps(1).is_empty());
        assert_eq!(placements.none_in_use(1), !all.iter().any(|it| in_use(&it)));
        let complete = placements.is_covered(1) && all.iter().all(|it| it.made);
        assert_eq!(placements.is_complete(1), complete);
        let owners: BTreeSet<&str> = all.iter().filter(in_use).map(|it| &*it.owner).collect();
        let found: Vec<_> = placements.in_use().collect();
        assert!(found.iter().map(|it| it.owner).eq(owners), "{found:?}");
        for InUse { owner, are_listed } in found {
            let mut of_it = all.iter().filter(|it| it.owner == owner).filter(in_use);
            assert_eq!(are_listed, of_it.all(|it| it.listed), "{owner}");
        }
    }
}

#[test]
fn tablets_are_found_from_a_row_on() {
    let mut placements = Placements::default();
    for (id, start, end) in [(1, "", "g"), (2, "g", "p"), (3, "s", "")] {
        placements.place(id, placement("a", start, end));
    }
    let from = |row: &str| ids(placements.from_row(1, row.as_bytes()));
    assert_eq!(from(""), [1, 2, 3]);
    assert_eq!(from("f"), [1, 2, 3]);
    assert_eq!(from("g"), [2, 3]);
    assert_eq!(from("q"), [3]);
    assert_eq!(from("z"), [3]);
    assert_eq!(ids(placements.from_row(2, b"")), [0_u64; 0]);
}

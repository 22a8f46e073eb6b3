//! Plans moves of tablets: away from servers that are drained, and from servers with much to servers with little. Pure: facts
//! about servers and tablets go in, moves come out.
//!
//! A tablet weighs its bytes, [`TABLET_WEIGHT`] for what it costs empty, and its part of the load ([`LoadUnit`]). A server's
//! weight is that of its tablets, as they are when all moves under way have ended. A move for balance makes the difference of two
//! servers smaller, so that it is never taken back as long as loads stay, and moves end. Where every tablet is too heavy for
//! that, one that is used much is split first.

use std::collections::BTreeSet;

/// What a tablet weighs besides its bytes.
pub(crate) const TABLET_WEIGHT: u64 = 4 << 20;
/// Moves under way for balance that a server gives, or gets.
const MOVES_MAX: usize = 2;
/// The same while servers are drained.
const DRAIN_MOVES_MAX: usize = 4;
/// The most servers whose tablets one step considers, beside those that are drained.
const SOURCES_MAX: usize = 16;
/// Servers whose weights differ by less than one in so many of the mean are left as they are.
const TOLERANCE: u64 = 10;
/// A tablet isn't split for its load unless it weighs more than one in so many of the mean.
const SPLIT_PART: u64 = 4;

/// A tablet server that is up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerWeight {
    pub(crate) name: String,
    /// It is to have no tablets.
    pub(crate) drains: bool,
    /// Of its tablets, once all moves under way have ended.
    pub(crate) weight: u64,
    /// Bytes that it can still get; `None`: that isn't known.
    pub(crate) room: Option<u64>,
    /// Moves under way from it, and to it.
    pub(crate) gives: usize,
    pub(crate) gets: usize,
}

impl ServerWeight {
    fn has_room(&self, bytes: u64) -> bool {
        self.room.is_none_or(|room| bytes <= room)
    }
}

/// A tablet that may be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TabletWeight {
    pub(crate) id: u64,
    pub(crate) weight: u64,
    pub(crate) bytes: u64,
    /// It is used much, and its server knows where to split it.
    pub(crate) splits: bool,
}

/// What load weighs. All load together weighs as much as everything else, unless there is little of it: then each cell a second weighs
/// as if every server had `floor` of them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LoadUnit {
    weight: u64,
    load: u64,
}

impl LoadUnit {
    /// `weight`: of all tablets, without load; `load`: of all; `floor`: see above, zero: load weighs nothing.
    pub(crate) fn new(weight: u64, load: u64, floor: u64, servers: usize) -> Self {
        if floor == 0 {
            return Self::default();
        }
        let least = floor.saturating_mul(servers as u64).max(1);
        Self {
            weight,
            load: load.max(least),
        }
    }

    /// Of so many cells a second.
    pub(crate) fn weight(self, load: u64) -> u64 {
        let whole = u128::from(self.load.max(1));
        let weight = u128::from(self.weight) * u128::from(load) / whole;
        u64::try_from(weight).unwrap_or(u64::MAX)
    }
}

/// A tablet, and the server that is to get it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlannedMove {
    pub(crate) tablet: u64,
    pub(crate) to: String,
}

/// What is to be done now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) moves: Vec<PlannedMove>,
    /// Tablets that are to be split where their load is about half.
    pub(crate) splits: Vec<u64>,
    /// Servers that are drained and have a tablet that no other server has room for.
    pub(crate) without_room: BTreeSet<String>,
}

/// What is to be moved now, or split. `tablets`: those of a server that may be moved, and are not on their way; of few servers they are
/// asked for. `refuses`: whether a server has refused a tablet lately. `balances`: also from servers that are not drained.
pub(crate) fn plan(
    mut servers: Vec<ServerWeight>,
    balances: bool,
    tablets: impl Fn(&str) -> Vec<TabletWeight>,
    refuses: impl Fn(&str, u64) -> bool,
) -> Planned {
    let mut planned = Planned::default();
    empty_drained(&mut servers, &mut planned, &tablets, &refuses);
    let moves = &mut planned.moves;
    if !balances {
        return planned;
    }
    // Moves between servers that stay don't change it.
    let mean = {
        let weights = servers.iter().filter(|server| !server.drains);
        let count = weights.clone().count().max(1) as u64;
        weights.map(|server| server.weight).sum::<u64>() / count
    };
    let mut exhausted = BTreeSet::new();
    // Servers that have no room for what the heaviest one could give, or refuse it.
    let mut full = BTreeSet::new();
    loop {
        let stays = |(_, server): &(usize, &ServerWeight)| !server.drains;
        let source = servers.iter().enumerate().filter(stays);
        let source = source
            .filter(|(index, server)| server.gives < MOVES_MAX && !exhausted.contains(index))
            .max_by_key(|(index, server)| (server.weight, std::cmp::Reverse(*index)));
        let target = lightest(&servers, MOVES_MAX, |index, _| !full.contains(&index));
        let (Some((source, _)), Some(target)) = (source, target) else {
            return planned;
        };
        let difference = servers[source]
            .weight
            .saturating_sub(servers[target].weight);
        if difference <= mean / TOLERANCE || exhausted.len() >= SOURCES_MAX {
            return planned;
        }
        let moved: BTreeSet<u64> = moves.iter().map(|it| it.tablet).collect();
        let left = tablets(&servers[source].name).into_iter();
        let left = left.filter(|tablet| !moved.contains(&tablet.id));
        let (fitting, too_heavy): (Vec<_>, Vec<_>) =
            left.partition(|tablet| tablet.weight <= difference - difference / 4);
        let takes = |tablet: &TabletWeight| {
            let target = &servers[target];
            target.has_room(tablet.bytes) && !refuses(&target.name, tablet.id)
        };
        let (taken, left): (Vec<_>, Vec<_>) = fitting.into_iter().partition(takes);
        if taken.is_empty() && !left.is_empty() {
            full.insert(target);
            continue;
        }
        let evenest = taken.into_iter().min_by_key(|tablet| {
            let after = difference.abs_diff(tablet.weight.saturating_mul(2));
            (after, tablet.id)
        });
        if let Some(tablet) = evenest {
            moves.push(give(&mut servers, source, target, tablet));
            continue;
        }
        let splits = |tablet: &TabletWeight| tablet.splits && tablet.weight > mean / SPLIT_PART;
        let to_split = heaviest(too_heavy.into_iter().filter(splits));
        planned.splits.extend(to_split.map(|tablet| tablet.id));
        exhausted.insert(source);
    }
}

/// Plans moves from the servers that are drained.
fn empty_drained(
    servers: &mut [ServerWeight],
    planned: &mut Planned,
    tablets: impl Fn(&str) -> Vec<TabletWeight>,
    refuses: impl Fn(&str, u64) -> bool,
) {
    for source in 0..servers.len() {
        if !servers[source].drains {
            continue;
        }
        let mut left = tablets(&servers[source].name);
        left.sort_by_key(|tablet| (tablet.weight, tablet.id));
        while servers[source].gives < DRAIN_MOVES_MAX
            && let Some(tablet) = left.pop()
        {
            let may_get = |_, server: &ServerWeight| {
                server.has_room(tablet.bytes) && !refuses(&server.name, tablet.id)
            };
            // Another one may be small enough.
            let Some(target) = lightest(servers, DRAIN_MOVES_MAX, may_get) else {
                let mut takers = servers.iter().filter(|server| !server.drains).peekable();
                if takers.peek().is_some() && takers.all(|server| !server.has_room(tablet.bytes)) {
                    let without_room = &mut planned.without_room;
                    without_room.insert(servers[source].name.clone());
                }
                continue;
            };
            let given = give(servers, source, target, tablet);
            planned.moves.push(given);
        }
    }
}

fn heaviest(tablets: impl Iterator<Item = TabletWeight>) -> Option<TabletWeight> {
    tablets.max_by_key(|tablet| (tablet.weight, std::cmp::Reverse(tablet.id)))
}

/// The server with the least that may get one more.
fn lightest(
    servers: &[ServerWeight],
    gets_max: usize,
    may_get: impl Fn(usize, &ServerWeight) -> bool,
) -> Option<usize> {
    let servers = servers.iter().enumerate().filter(|(index, server)| {
        !server.drains && server.gets < gets_max && may_get(*index, server)
    });
    let lightest = servers.min_by_key(|(index, server)| (server.weight, *index));
    lightest.map(|(index, _)| index)
}

fn give(
    servers: &mut [ServerWeight],
    source: usize,
    target: usize,
    tablet: TabletWeight,
) -> PlannedMove {
    servers[source].gives += 1;
    servers[source].weight = servers[source].weight.saturating_sub(tablet.weight);
    servers[target].gets += 1;
    servers[target].weight += tablet.weight;
    if let Some(room) = &mut servers[target].room {
        *room = room.saturating_sub(tablet.bytes);
    }
    PlannedMove {
        tablet: tablet.id,
        to: servers[target].name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Servers and their tablets, moved at once.
    #[derive(Clone, Default)]
    struct World {
        tablets: BTreeMap<String, BTreeMap<u64, u64>>,
        drains: BTreeSet<String>,
        /// Bytes that these have for tablets.
        room: BTreeMap<String, u64>,
        /// Servers that refuse every tablet.
        refuse: BTreeSet<String>,
        /// Tablets that can be split by load.
        hot: BTreeSet<u64>,
        moves: usize,
        splits: usize,
        most_of_one: BTreeMap<u64, usize>,
    }

    impl World {
        fn new(servers: impl IntoIterator<Item = (String, Vec<u64>)>) -> Self {
            let mut next = 0;
            let mut world = Self::default();
            for (server, weights) in servers {
                let tablets = weights.into_iter().map(|weight| {
                    next += 1;
                    (next, weight)
                });
                world.tablets.insert(server, tablets.collect());
            }
            world
        }

        fn plan(&self, balances: bool) -> Planned {
            let servers = self.tablets.iter().map(|(name, tablets)| ServerWeight {
                name: name.clone(),
                drains: self.drains.contains(name),
                room: self.room.get(name).map(|room| {
                    let has: u64 = tablets.values().sum();
                    room.saturating_sub(has)
                }),
                weight: tablets.values().sum(),
                ..ServerWeight::default()
            });
            let of_server = |server: &str| {
                let tablets = self.tablets[server].iter();
                tablets
                    .map(|(id, weight)| TabletWeight {
                        id: *id,
                        weight: *weight,
                        bytes: *weight,
                        splits: self.hot.contains(id),
                    })
                    .collect()
            };
            plan(servers.collect(), balances, of_server, |server, _| {
                self.refuse.contains(server)
            })
        }

        /// Until nothing is to be moved.
        fn settle(&mut self, balances: bool) {
            for _ in 0..100_000 {
                let Planned { moves, splits, .. } = self.plan(balances);
                for tablet in &splits {
                    self.split(*tablet);
                }
                if moves.is_empty() && splits.is_empty() {
                    return;
                }
                for PlannedMove { tablet, to } in moves {
                    let weight = self.tablets.values_mut().find_map(|it| it.remove(&tablet));
                    let here = self.tablets.get_mut(&to).unwrap();
                    here.insert(tablet, weight.unwrap());
                    self.moves += 1;
                    *self.most_of_one.entry(tablet).or_default() += 1;
                }
            }
            panic!("moves never end");
        }

        /// Into halves, the second of which has the next number.
        fn split(&mut self, tablet: u64) {
            let next = self
                .tablets
                .values()
                .flat_map(|it| it.keys())
                .max()
                .unwrap()
                + 1;
            let mut servers = self.tablets.values_mut();
            let here = servers.find(|it| it.contains_key(&tablet)).unwrap();
            let weight = here[&tablet];
            here.insert(tablet, weight - weight / 2);
            here.insert(next, weight / 2);
            self.hot.insert(next);
            self.splits += 1;
        }

        fn weights(&self) -> Vec<u64> {
            let servers = self.tablets.values();
            servers.map(|it| it.values().sum()).collect()
        }
    }

    fn named(count: usize) -> impl Iterator<Item = String> {
        (0..count).map(|number| format!("tablet-{number:03}"))
    }

    #[test]
    fn what_is_even_stays() {
        let one = World::new(named(3).zip([vec![100], vec![], vec![]]));
        assert_eq!(one.plan(true), Planned::default());
        // One more or less is no reason to move.
        let uneven = World::new(named(3).zip([vec![10; 5], vec![10; 4], vec![10; 4]]));
        assert_eq!(uneven.plan(true), Planned::default());
        // Nor is a tenth, even if a tablet would fit.
        let small = World::new(named(2).zip([vec![1; 105], vec![1; 100]]));
        assert_eq!(small.plan(true), Planned::default());
    }

    #[test]
    fn tablets_go_from_much_to_little() {
        let mut world = World::new(named(3).zip([vec![10; 12], vec![], vec![]]));
        assert!(world.plan(false).moves.is_empty());
        // A server gives two at a time.
        assert_eq!(world.plan(true).moves.len(), 2);
        world.settle(true);
        assert_eq!((world.weights(), world.moves), (vec![40, 40, 40], 8));
    }

    #[test]
    fn a_server_that_is_drained_is_empty_then() {
        let mut world = World::new(named(3).zip([vec![10, 20, 30, 40], vec![50], vec![]]));
        world.drains.insert("tablet-000".into());
        world.settle(false);
        assert_eq!(world.moves, 4);
        assert_eq!(world.weights()[0], 0);
        // It gets nothing either; and with all of them drained, nothing moves.
        world.settle(true);
        assert_eq!(world.weights()[0], 0);
        for server in named(3) {
            world.drains.insert(server);
        }
        assert!(world.plan(true).moves.is_empty());
    }

    #[test]
    fn moves_under_way_count_and_are_few() {
        let server = |name: &str, weight, gives, gets| ServerWeight {
            name: name.into(),
            drains: false,
            weight,
            room: None,
            gives,
            gets,
        };
        let tablets = |_: &str| {
            vec![TabletWeight {
                id: 1,
                weight: 10,
                bytes: 10,
                splits: true,
            }]
        };
        let servers = |gives, gets| vec![server("a", 100, gives, 0), server("b", 0, 0, gets)];
        let takes_all = |_: &str, _| false;
        assert_eq!(plan(servers(1, 1), true, tablets, takes_all).moves.len(), 1);
        for servers in [servers(MOVES_MAX, 0), servers(0, MOVES_MAX)] {
            assert_eq!(plan(servers, true, tablets, takes_all), Planned::default());
        }
    }

    #[test]
    fn a_tablet_that_is_too_heavy_and_used_much_is_split_until_its_parts_fit() {
        let mut world = World::new(named(3).zip([vec![96, 4], vec![4], vec![4]]));
        assert!(world.plan(true).splits.is_empty(), "it is not used much");
        world.hot.insert(1);
        world.settle(true);
        let weights = world.weights();
        assert!(
            weights.iter().all(|it| (30..=42).contains(it)),
            "{weights:?}"
        );
        assert!(world.splits <= 12, "{}", world.splits);
        // What fits is moved, not split.
        let mut fits = World::new(named(2).zip([vec![10; 4], vec![]]));
        fits.hot.extend(1..=4);
        fits.settle(true);
        assert_eq!((fits.splits, fits.weights()), (0, vec![20, 20]));
    }

    #[test]
    fn load_weighs_as_much_as_everything_else_if_there_is_enough() {
        let unit = LoadUnit::new(1_000, 300, 10, 3);
        assert_eq!((unit.weight(300), unit.weight(30)), (1_000, 100));
        // A little load is no reason to move much.
        let little = LoadUnit::new(1_000, 3, 10, 3);
        assert_eq!(little.weight(3), 100);
        assert_eq!(LoadUnit::new(1_000, 300, 0, 3).weight(300), 0);
        let most = LoadUnit::new(u64::MAX, u64::MAX, 1, 1);
        assert_eq!(most.weight(u64::MAX), u64::MAX);
    }

    #[test]
    fn a_server_gets_no_more_than_it_has_room_for() {
        let mut world = World::new(named(3).zip([vec![10, 20, 30], vec![], vec![50]]));
        world.room.insert("tablet-001".into(), 25);
        world.settle(true);
        assert!(world.tablets["tablet-001"].values().sum::<u64>() <= 25);
        // A drain gives what fits, and the rest to another one, however much that has.
        world.drains.insert("tablet-000".into());
        world.settle(false);
        assert_eq!(world.weights()[0], 0);
        assert!(world.tablets["tablet-001"].values().sum::<u64>() <= 25);
        // One that is full doesn't keep others from getting tablets.
        let mut world = World::new(named(3).zip([vec![10; 9], vec![], vec![12, 12]]));
        world.room.insert("tablet-001".into(), 5);
        world.settle(true);
        assert_eq!(world.weights()[1], 0);
        assert!(world.moves > 0);
        // Where nothing fits, nothing is moved.
        let mut full = World::new(named(2).zip([vec![10], vec![]]));
        full.drains.insert("tablet-000".into());
        full.room.insert("tablet-001".into(), 9);
        let expected = Planned {
            without_room: ["tablet-000".to_owned()].into(),
            ..Planned::default()
        };
        assert_eq!(full.plan(true), expected);
    }

    #[test]
    fn what_a_server_refuses_goes_to_another_one() {
        for drains in [true, false] {
            let mut world = World::new(named(3).zip([vec![10; 9], vec![], vec![12, 12]]));
            world.refuse.insert("tablet-001".into());
            if drains {
                world.drains.insert("tablet-000".into());
            }
            world.settle(!drains);
            let weights = world.weights();
            assert_eq!(weights[1], 0, "{weights:?}");
            assert!(weights[2] > 24, "{weights:?}");
            assert!(!drains || weights[0] == 0, "{weights:?}");
        }
    }

    /// 10,000 tablets of many sizes on 100 servers: at the end they are even, no tablet was moved twice, and few more were moved
    /// than had to be.
    #[test]
    fn many_tablets_are_even_after_few_moves() {
        let mut seed = 7_u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        let mut world = World::new(named(100).map(|name| (name, Vec::new())));
        let mut total = 0;
        for id in 0..10_000 {
            // A tenth of the servers has most.
            let server = next(10) * if next(4) == 0 { 10 } else { 1 };
            let weight = TABLET_WEIGHT + next(256 << 20);
            total += weight;
            let name = format!("tablet-{server:03}");
            world.tablets.get_mut(&name).unwrap().insert(id, weight);
        }
        let mean = total / 100;
        // Of each server above the mean, its largest tablets as long as they fit into what is too much.
        let mut least = 0;
        for tablets in world.tablets.values() {
            let mut excess = tablets.values().sum::<u64>().saturating_sub(mean);
            let mut weights: Vec<_> = tablets.values().copied().collect();
            weights.sort_unstable();
            while let Some(weight) = weights.pop()
                && excess > mean / TOLERANCE
            {
                excess = excess.saturating_sub(weight);
                least += 1;
            }
        }
        world.settle(true);
        let weights = world.weights();
        let (lowest, highest) = (weights.iter().min().unwrap(), weights.iter().max().unwrap());
        assert!(highest - lowest <= mean / TOLERANCE, "{lowest} {highest}");
        assert!(world.moves * 10 <= least * 12, "{} {least}", world.moves);
        assert_eq!(world.most_of_one.values().max(), Some(&1));
    }
}

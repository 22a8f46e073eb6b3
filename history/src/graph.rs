//! A graph of dependencies, and cycles in it that snapshot isolation forbids: those without two
//! anti-dependencies one after the other.
//!
//! Each node is there twice: as reached by an anti-dependency, from where no other one may follow, and as
//! reached by anything else. A cycle of this graph is a forbidden cycle of the other, and the other way
//! round.

use std::collections::VecDeque;

use crate::hashed::HashMap;

/// Why one follows another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edge<'a> {
    /// The other overwrote its version of this cell.
    Ww(&'a str),
    /// The other wrote a later version of this cell.
    Later(&'a str),
    /// The other wrote a later version of this cell: this reader saw that, and something else that the first one wrote.
    Together(&'a str, usize),
    /// The other read its version.
    Wr(&'a str),
    /// The other overwrote what it read.
    Rw(&'a str),
    /// It read that this cell was never written, and the other wrote it, maybe not as the first: an
    /// anti-dependency too.
    Absent(&'a str),
    /// Somebody overwrote what it read, and the other overwrote that, or was that: an anti-dependency too.
    Overwritten(&'a str),
    /// The other overwrote what it read and had got for update: not while it was under way.
    Locked(&'a str),
    /// From a node that stands for some of a cell's writers to each of them: the same step goes on.
    Onward,
    /// The other began after it had committed.
    Start,
    /// The other began after its end was answered.
    RealTime,
}

impl Edge<'_> {
    pub(crate) fn is_anti_dependency(&self) -> bool {
        matches!(self, Self::Rw(_) | Self::Absent(_) | Self::Overwritten(_))
    }
}

/// Nodes by number, each with whom they lead to.
#[derive(Debug)]
pub(crate) struct Graph<'a> {
    edges: Vec<Vec<(usize, Edge<'a>)>>,
}

/// A cycle: a node, and the edge that leads to the next one.
pub(crate) type Cycle<'a> = Vec<(usize, Edge<'a>)>;

impl<'a> Graph<'a> {
    pub(crate) fn new(nodes: usize) -> Self {
        Self {
            edges: vec![Vec::new(); nodes],
        }
    }

    pub(crate) fn add(&mut self, from: usize, to: usize, edge: Edge<'a>) {
        if from != to {
            self.edges[from].push((to, edge));
        }
    }

    #[cfg(test)]
    pub(crate) fn edges(&self) -> usize {
        self.edges.iter().map(Vec::len).sum()
    }

    /// The nodes that one leads to, over whichever others.
    #[cfg(test)]
    pub(crate) fn reached(&self, from: usize) -> std::collections::BTreeSet<usize> {
        let mut reached = std::collections::BTreeSet::new();
        let mut open = vec![from];
        while let Some(node) = open.pop() {
            let next = self.edges[node].iter().map(|(to, _)| *to);
            open.extend(next.filter(|to| reached.insert(*to)));
        }
        reached
    }

    /// Steps from a node in its state: 2 times its number, 1 more if it was reached by an
    /// anti-dependency.
    fn steps(&self, state: usize) -> impl Iterator<Item = (usize, Edge<'a>)> {
        let after_rw = state % 2 == 1;
        self.edges[state / 2]
            .iter()
            .filter_map(move |(to, edge)| match edge {
                edge if edge.is_anti_dependency() => (!after_rw).then_some((2 * to + 1, *edge)),
                Edge::Onward => Some((2 * to + usize::from(after_rw), *edge)),
                _ => Some((2 * to, *edge)),
            })
    }

    /// A forbidden cycle, if there is one; a short one.
    pub(crate) fn forbidden_cycle(&self) -> Option<Cycle<'a>> {
        let component = self.components();
        let mut sizes = vec![0; component.len()];
        for of in &component {
            sizes[*of] += 1;
        }
        let states = || component.iter().enumerate();
        let (_, smallest) = states()
            .filter(|(_, of)| sizes[**of] > 1)
            .min_by_key(|(state, of)| (sizes[**of], *state))?;
        // Where the component is large, any of its states lies on some short cycle.
        states()
            .filter(|(_, of)| *of == smallest)
            .take(64)
            .filter_map(|(from, _)| self.shortest_back(from, &component))
            .min_by_key(Vec::len)
    }

    /// The shortest way from a state to itself.
    fn shortest_back(&self, from: usize, component: &[usize]) -> Option<Cycle<'a>> {
        let mut came: HashMap<usize, (usize, Edge<'a>)> = HashMap::default();
        let mut queue = VecDeque::from([from]);
        while let Some(state) = queue.pop_front() {
            for (to, edge) in self.steps(state) {
                if component[to] != component[from] || came.contains_key(&to) {
                    continue;
                }
                came.insert(to, (state, edge));
                if to == from {
                    let mut cycle = Vec::new();
                    let mut at = from;
                    loop {
                        let (before, edge) = came[&at];
                        cycle.push((before / 2, edge));
                        at = before;
                        if at == from {
                            cycle.reverse();
                            return Some(cycle);
                        }
                    }
                }
                queue.push_back(to);
            }
        }
        None
    }

    /// For each state, which strongly connected component it is in (Tarjan's, without recursion).
    fn components(&self) -> Vec<usize> {
        const NEW: usize = usize::MAX;
        let states = self.edges.len() * 2;
        let mut component = vec![NEW; states];
        let mut index = vec![NEW; states];
        let mut low = vec![0; states];
        let mut on_stack = vec![false; states];
        let mut stack = Vec::new();
        let (mut next_index, mut next_component) = (0, 0);
        for root in 0..states {
            if index[root] != NEW {
                continue;
            }
            let mut work = vec![(root, None)];
            while let Some((state, steps)) = work.last_mut() {
                let state = *state;
                let steps = steps.get_or_insert_with(|| {
                    index[state] = next_index;
                    low[state] = next_index;
                    next_index += 1;
                    stack.push(state);
                    on_stack[state] = true;
                    self.steps(state)
                        .map(|(to, _)| to)
                        .collect::<Vec<_>>()
                        .into_iter()
                });
                match steps.next() {
                    Some(to) if index[to] == NEW => work.push((to, None)),
                    Some(to) => {
                        if on_stack[to] {
                            low[state] = low[state].min(index[to]);
                        }
                    }
                    None => {
                        work.pop();
                        if let Some((parent, _)) = work.last() {
                            low[*parent] = low[*parent].min(low[state]);
                        }
                        if low[state] == index[state] {
                            while let Some(member) = stack.pop() {
                                on_stack[member] = false;
                                component[member] = next_component;
                                if member == state {
                                    break;
                                }
                            }
                            next_component += 1;
                        }
                    }
                }
            }
        }
        component
    }
}

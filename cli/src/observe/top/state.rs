//! What `top` shows, and how keys and news change it. It knows no terminal, no clock and no cluster.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ratatui::crossterm::event::KeyCode;
use serde_json::{Value, json};

use super::super::metrics::Page;
use super::super::page;
use super::super::problems::{self, Problem};
use super::super::survey::Survey;
use super::load::{Load, PROXIES, Shown, TABLETS, TabletLoad, between, of_tablets};
use super::scroll::Scroll;

/// Loads that are kept for the sparklines.
const KEPT: usize = 200;

/// One observation of the cluster.
#[derive(Debug)]
pub(crate) struct Sample {
    /// Since the first.
    pub(crate) at: Duration,
    pub(crate) survey: Result<Survey, String>,
    /// By server.
    pub(crate) pages: BTreeMap<String, Result<Page, String>>,
}

/// The order of tablets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TabletOrder {
    /// By table and rows.
    #[default]
    Table,
    Server,
    /// Most requests first.
    Load,
    /// Most garbage first.
    Garbage,
}

/// A tablet's line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TabletLine {
    pub(crate) table: String,
    pub(crate) id: u64,
    pub(crate) server: String,
    pub(crate) state: &'static str,
    /// Where its server's metrics are reached, and tell it apart.
    pub(crate) load: Option<TabletLoad>,
    pub(crate) garbage: u64,
}

/// What is shown.
#[derive(Debug, Default)]
pub(crate) struct Top {
    /// The last one that there was.
    pub(crate) survey: Option<Survey>,
    pub(crate) problems: Vec<Problem>,
    /// What could not be reached.
    unseen: Vec<String>,
    /// Why there's no newer survey.
    pub(crate) failure: Option<String>,
    /// Of all tablet servers together, newest last.
    pub(crate) past: VecDeque<Load>,
    /// By server.
    pub(crate) loads: BTreeMap<String, Load>,
    /// By tablet.
    pub(crate) loads_of_tablets: BTreeMap<u64, TabletLoad>,
    /// Whose metrics aren't there, and why.
    pub(crate) unreached: BTreeMap<String, String>,
    pub(crate) order: TabletOrder,
    /// Of the survey's servers.
    pub(crate) servers: Scroll,
    /// Of [`Self::tablets`].
    pub(crate) tablets_seen: Scroll,
    /// Keys move among tablets, not among servers.
    pub(crate) in_tablets: bool,
    /// The chosen server alone is shown.
    pub(crate) inside: bool,
    pages: BTreeMap<String, Page>,
    at: Duration,
}

impl Top {
    pub(crate) fn take(&mut self, seen: Sample) {
        let mut pages = BTreeMap::new();
        self.unreached.clear();
        for (server, page) in seen.pages {
            match page {
                Ok(page) => drop(pages.insert(server, page)),
                Err(why) => drop(self.unreached.insert(server, why)),
            }
        }
        match seen.survey {
            Ok(mut survey) => {
                survey.add_shown(&pages);
                let last = survey.servers.len().saturating_sub(1);
                self.servers.chosen = self.servers.chosen.min(last);
                self.survey = Some(survey);
                self.failure = None;
            }
            Err(why) => self.failure = Some(why),
        }
        let seconds = seen.at.saturating_sub(self.at).as_secs_f64();
        if let (Some(survey), None) = (&self.survey, &self.failure) {
            self.problems = problems::find(survey, &pages);
            self.unseen = problems::unseen(survey, &pages);
        }
        let of = |shown: &Shown| -> BTreeMap<String, (&Page, &Page)> {
            let both = pages.iter().filter_map(|(server, now)| {
                let before = self.pages.get(server)?;
                now.sum(shown.requests, &[])?;
                Some((server.clone(), (before, now)))
            });
            both.collect()
        };
        let tablets = of(&TABLETS);
        self.loads = [(&TABLETS, tablets.clone()), (&PROXIES, of(&PROXIES))]
            .into_iter()
            .flat_map(|(shown, pages)| {
                pages
                    .into_iter()
                    .map(move |(server, both)| (server, between(shown, &[both], seconds)))
            })
            .collect();
        self.loads_of_tablets = tablets
            .values()
            .flat_map(|(before, now)| of_tablets(before, now, seconds))
            .collect();
        if !tablets.is_empty() {
            let all: Vec<_> = tablets.into_values().collect();
            self.past.push_back(between(&TABLETS, &all, seconds));
            if self.past.len() > KEPT {
                self.past.pop_front();
            }
        }
        self.pages = pages;
        self.at = seen.at;
    }

    /// Whether that was the end.
    pub(crate) fn key(&mut self, key: KeyCode) -> bool {
        match key {
            KeyCode::Char('q') => return true,
            KeyCode::Esc if !self.inside => return true,
            KeyCode::Esc | KeyCode::Backspace => self.look_into(false),
            KeyCode::Enter => self.look_into(!self.inside),
            KeyCode::Tab | KeyCode::BackTab => self.in_tablets = !self.in_tablets,
            KeyCode::Char('s') => {
                self.order = match self.order {
                    TabletOrder::Table => TabletOrder::Server,
                    TabletOrder::Server => TabletOrder::Load,
                    TabletOrder::Load => TabletOrder::Garbage,
                    TabletOrder::Garbage => TabletOrder::Table,
                };
                self.tablets_seen = Scroll::default();
            }
            _ if self.in_tablets => {
                let tablets = self.tablets().len();
                self.tablets_seen.key(key, tablets);
            }
            _ => {
                let servers = self.survey.as_ref().map_or(0, |it| it.servers.len());
                let chosen = self.servers.chosen;
                self.servers.key(key, servers);
                if self.inside && self.servers.chosen != chosen {
                    self.tablets_seen = Scroll::default();
                }
            }
        }
        false
    }

    /// Looks into the chosen server, or at all of them again. Keys move in what is new then.
    fn look_into(&mut self, inside: bool) {
        self.inside = inside;
        self.in_tablets = inside;
        self.tablets_seen = Scroll::default();
    }

    /// The server that is shown alone.
    pub(crate) fn looked_at(&self) -> Option<&str> {
        let servers = &self.survey.as_ref()?.servers;
        let server = servers.get(self.servers.chosen).filter(|_| self.inside)?;
        Some(&server.name)
    }

    pub(crate) fn tablets(&self) -> Vec<TabletLine> {
        let Some(survey) = &self.survey else {
            return Vec::new();
        };
        let garbage: BTreeMap<u64, u64> = survey
            .gc
            .servers
            .iter()
            .flat_map(|server| &server.tablets)
            .map(|tablet| (tablet.tablet, tablet.waiting))
            .collect();
        let mut lines = Vec::new();
        for table in &survey.tables {
            for tablet in &table.tablets {
                lines.push(TabletLine {
                    table: table.name.clone(),
                    id: tablet.id,
                    server: tablet.server.clone(),
                    state: match (survey.is_lost(tablet.id), tablet.server_alive) {
                        (true, _) => "lost",
                        (false, false) => "away",
                        (false, true) if table.deleting => "deleting",
                        (false, true) => "ready",
                    },
                    load: self.loads_of_tablets.get(&tablet.id).copied(),
                    garbage: garbage.get(&tablet.id).copied().unwrap_or(0),
                });
            }
        }
        if let Some(server) = self.looked_at() {
            lines.retain(|line| line.server == server);
        }
        // What is alike stays in order of table and rows.
        match self.order {
            TabletOrder::Table => {}
            TabletOrder::Server => lines.sort_by(|a, b| a.server.cmp(&b.server)),
            TabletOrder::Load => lines.sort_by(|a, b| {
                let load = |line: &TabletLine| line.load.map_or(-1.0, |it| it.requests_per_second);
                load(b).total_cmp(&load(a))
            }),
            TabletOrder::Garbage => lines.sort_by_key(|line| std::cmp::Reverse(line.garbage)),
        }
        lines
    }

    /// For scripts.
    pub(crate) fn json(&self) -> Value {
        let status = self
            .survey
            .as_ref()
            .map(|survey| page::json(survey, &self.problems, &self.unseen));
        json!({
            "status": status,
            "load": self.past.back(),
            "load_of": self.loads,
            "load_of_tablets": self.loads_of_tablets,
            "metrics_not_reached": self.unreached,
        })
    }
}

//! One frame of `top`, from what is to be shown.

use std::ops::RangeInclusive;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Paragraph, Row, Sparkline, Table, Wrap};

use super::super::page;
use super::load::{Load, TabletLoad};
use super::scroll::words;
use super::state::{TabletOrder, Top};
use crate::gc::age_at;

const BAD: Style = Style::new().fg(Color::Red);
const HEAD: Style = Style::new().add_modifier(Modifier::BOLD);
const CHOSEN: Style = Style::new().add_modifier(Modifier::REVERSED);
const WITHOUT_METRICS: &str = "no metrics are reached, so there are no rates and latencies: run it beside `percolator up`, \
                               with its --data-dir, or name them with --metrics SERVER=HOST:PORT";

/// Lines of the list of servers, with its head and the master: a third of the screen within these bounds.
const SERVER_LINES: RangeInclusive<u16> = 5..=12;
const KEYS: &str =
    "q quit  Tab list  up/down/PgUp/PgDn/Home/End  Enter look into  Esc back  s sort";

pub(crate) fn draw(frame: &mut Frame<'_>, top: &mut Top) {
    let servers = top.survey.as_ref().map_or(0, |survey| survey.servers.len());
    let lines = u16::try_from(servers + 2).unwrap_or(u16::MAX);
    let third = frame.area().height / 3;
    let rows = lines.min(third.clamp(*SERVER_LINES.start(), *SERVER_LINES.end()));
    let wrong_lines = Paragraph::new(problems_of(top)).wrap(Wrap { trim: false });
    // As much as is needed, up to half of the screen.
    let width = usize::from(frame.area().width.max(1));
    let needed = |words: &str| words.chars().count().div_ceil(width) as u16;
    let problems = top.problems.iter().fold(0u16, |sum, problem| {
        sum.saturating_add(needed(&problem.what) + needed(&problem.action) + 2)
    });
    let problems = problems.min(frame.area().height / 2);
    let [title, load, list, more, points, tablets, wrong, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(4),
        Constraint::Length(rows),
        Constraint::Length(u16::from(rows < lines)),
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(problems),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let (words, style) = title_of(top);
    frame.render_widget(
        Line::styled(words, style.add_modifier(Modifier::BOLD)),
        title,
    );
    draw_load(frame, top, load);
    draw_servers(frame, top, list, more);
    frame.render_widget(Line::raw(points_of(top)), points);
    draw_tablets(frame, top, tablets);
    frame.render_widget(wrong_lines, wrong);
    frame.render_widget(Line::raw(KEYS), keys);
}

/// The most urgent ones first: where the screen is small, the last ones aren't seen.
fn problems_of(top: &Top) -> Text<'static> {
    let lines = top.problems.iter().flat_map(|problem| {
        [
            Line::styled(format!("! {}", problem.what), BAD),
            Line::raw(format!("  do: {}", problem.action)),
        ]
    });
    Text::from_iter(lines)
}

fn title_of(top: &Top) -> (String, Style) {
    let Some(survey) = &top.survey else {
        return match &top.failure {
            Some(why) => (format!("percolator: {why}"), BAD),
            None => ("percolator: asking the master".into(), HEAD),
        };
    };
    let name = format!("percolator: {} at {}", survey.cluster_id, survey.master);
    match (&top.failure, top.problems.len()) {
        (Some(why), _) => (format!("{name}: as it was; now {why}"), BAD),
        (None, 0) => (format!("{name}: healthy"), HEAD),
        (None, problems) => (
            format!("{name}: {problems} not well, see below; `percolator status` has all"),
            BAD,
        ),
    }
}

/// What a sparkline is of.
type Number = fn(&Load) -> f64;

fn draw_load(frame: &mut Frame<'_>, top: &Top, area: Rect) {
    let Some(last) = top.past.back() else {
        let why = match top.unreached.iter().next() {
            Some((server, why)) => format!("no rates yet: {server}: {why}"),
            None if top.survey.is_some() => WITHOUT_METRICS.to_owned(),
            None => String::new(),
        };
        let why = Paragraph::new(why).wrap(Wrap { trim: true });
        return frame.render_widget(why.block(Block::bordered()), area);
    };
    let shown: [(String, Number); 4] = [
        (
            format!("requests/s {:.0}", last.requests_per_second),
            |load| load.requests_per_second,
        ),
        (
            format!("committed/s {:.0}", last.transactions_per_second),
            |load| load.transactions_per_second,
        ),
        (
            format!("read p99 {}", time(last.read_p99_seconds)),
            |load| load.read_p99_seconds.map_or(0.0, |seconds| seconds * 1e6),
        ),
        (
            format!("write p99 {}", time(last.write_p99_seconds)),
            |load| load.write_p99_seconds.map_or(0.0, |seconds| seconds * 1e6),
        ),
    ];
    let areas = Layout::horizontal([Constraint::Fill(1); 4]).split(area);
    for ((title, of), area) in shown.into_iter().zip(areas.iter()) {
        let room = usize::from(area.width.saturating_sub(2));
        let from = top.past.len().saturating_sub(room);
        // What is below one counts as nothing.
        let bars = top.past.iter().skip(from).map(|load| of(load) as u64);
        let line = Sparkline::default()
            .data(bars.collect::<Vec<_>>())
            .block(Block::bordered().title(title));
        frame.render_widget(line, *area);
    }
}

/// A bucket's bound.
fn time(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".into(),
        Some(seconds) if seconds < 1e-3 => format!("{:.0} us", seconds * 1e6),
        Some(seconds) if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        Some(seconds) => format!("{seconds:.1} s"),
    }
}

fn draw_servers(frame: &mut Frame<'_>, top: &mut Top, area: Rect, more: Rect) {
    let Some(survey) = &top.survey else { return };
    // The head and the master stay where they are.
    let room = usize::from(area.height.saturating_sub(2));
    let seen = top.servers.fit(survey.servers.len(), room);
    let which = words(&seen, survey.servers.len());
    frame.render_widget(Line::styled(format!("servers {which}"), HEAD), more);
    let chosen = if top.in_tablets { HEAD } else { CHOSEN };
    let up = if top.failure.is_none() {
        page::master_state(survey)
    } else {
        "not reached".to_owned()
    };
    let master =
        Row::new(["master", &survey.master_name, &survey.master, &up]).style(match top.failure {
            None => Style::new(),
            Some(_) => BAD,
        });
    let all = survey.servers.iter().enumerate();
    let servers = all
        .skip(seen.start)
        .take(seen.len())
        .map(|(number, server)| {
            let load = top.loads.get(&server.name);
            let rate = |of: fn(&Load) -> String| load.map_or_else(|| "-".to_owned(), of);
            let is_well = (server.alive || server.drained) && server.lost.is_empty();
            let style = match (is_well, number == top.servers.chosen) {
                (true, false) => Style::new(),
                (false, false) => BAD,
                (true, true) => chosen,
                (false, true) => BAD.patch(chosen),
            };
            Row::new([
                server.role.to_owned(),
                server.name.clone(),
                server.address.clone(),
                page::state(survey, server),
                survey.owned_by(&server.name).count().to_string(),
                rate(|load| format!("{:.0}", load.requests_per_second)),
                rate(|load| time(load.read_p99_seconds)),
                rate(|load| time(load.write_p99_seconds)),
                rate(|load| format!("{:.0}", load.locks)),
            ])
            .style(style)
        });
    let widths = [
        Constraint::Length(6),
        Constraint::Length(12),
        Constraint::Length(21),
        Constraint::Fill(1),
        Constraint::Length(7),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(9),
        Constraint::Length(6),
    ];
    let head = [
        "ROLE",
        "NAME",
        "ADDRESS",
        "STATE",
        "TABLETS",
        "REQUESTS",
        "READ P99",
        "WRITE P99",
        "LOCKS",
    ];
    let rows = std::iter::once(master).chain(servers);
    frame.render_widget(
        Table::new(rows, widths).header(Row::new(head).style(HEAD)),
        area,
    );
}

fn points_of(top: &Top) -> String {
    let Some(survey) = &top.survey else {
        return String::new();
    };
    let gc = &survey.gc;
    let oldest = survey
        .oldest()
        .map_or_else(|| "-".to_owned(), |(start_ts, _)| age_at(gc.now, start_ts));
    format!(
        "barrier {}, safe point {}, retention {}; oldest transaction {oldest}; {} sessions",
        page::old(gc.now, gc.barrier),
        page::old(gc.now, gc.safe_point),
        humantime::format_duration(gc.retention),
        gc.sessions
    )
}

fn draw_tablets(frame: &mut Frame<'_>, top: &mut Top, area: Rect) {
    let lines = top.tablets();
    let all = lines.len();
    // The frame and the head stay where they are.
    let room = usize::from(area.height.saturating_sub(3));
    let seen = top.tablets_seen.fit(all, room);
    let which = words(&seen, all);
    let order = match top.order {
        TabletOrder::Table => "by table",
        TabletOrder::Server => "by server",
        TabletOrder::Load => "by load",
        TabletOrder::Garbage => "by garbage",
    };
    let title = match top.looked_at() {
        Some(server) => format!("tablets of {server}, {order}, {which}"),
        None => format!("tablets, {order}, {which}"),
    };
    let lines = lines.into_iter().enumerate();
    let rows = lines
        .skip(seen.start)
        .take(seen.len())
        .map(|(number, line)| {
            let style = match line.state {
                "ready" => Style::new(),
                _ => BAD,
            };
            let style = if top.in_tablets && number == top.tablets_seen.chosen {
                style.patch(CHOSEN)
            } else {
                style
            };
            let rate = |of: fn(&TabletLoad) -> f64| {
                line.load
                    .map_or_else(|| "-".to_owned(), |load| format!("{:.0}", of(&load)))
            };
            let requests = rate(|load| load.requests_per_second);
            let kilobytes = rate(|load| load.bytes_per_second / 1e3);
            Row::new([
                line.table,
                line.id.to_string(),
                line.server,
                line.state.to_owned(),
                requests,
                kilobytes,
                line.garbage.to_string(),
            ])
            .style(style)
        });
    let widths = [
        Constraint::Fill(1),
        // An id is less than 2^53.
        Constraint::Length(16),
        Constraint::Length(12),
        Constraint::Length(9),
        Constraint::Length(10),
        Constraint::Length(7),
        Constraint::Length(12),
    ];
    let head = [
        "TABLE",
        "TABLET",
        "SERVER",
        "STATE",
        "REQUESTS/S",
        "KB/S",
        "GARBAGE",
    ];
    let table = Table::new(rows, widths).header(Row::new(head).style(HEAD));
    frame.render_widget(table.block(Block::bordered().title(title)), area);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyCode;

    use super::super::super::metrics::Page;
    use super::super::super::problems::tests;
    use super::super::super::proxies::tests::proxy;
    use super::super::state::Sample;
    use super::*;

    fn frame(top: &mut Top) -> String {
        let mut terminal = Terminal::new(TestBackend::new(100, 24)).expect("a terminal");
        terminal.draw(|frame| draw(frame, top)).expect("drawn");
        let buffer = terminal.backend().buffer().clone();
        let lines = buffer.content.chunks(100).map(|line| {
            let line: String = line.iter().map(|cell| cell.symbol()).collect();
            line.trim_end().to_owned()
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    fn seen(at: u64, survey: super::super::super::survey::Survey, gets: Option<u64>) -> Sample {
        let page = |gets: u64| {
            Page::parse(&format!(
                "percolator_tablet_requests_total{{method=\"get\",result=\"ok\"}} {gets}\n\
                 percolator_tablet_request_duration_seconds_bucket{{method=\"get\",le=\"0.0001\"}} {gets}\n\
                 percolator_tablet_request_duration_seconds_bucket{{method=\"get\",le=\"+Inf\"}} {gets}\n\
                 percolator_tablet_tablet_requests_total{{kind=\"read\",table=\"accounts\",tablet=\"2\"}} {gets}\n\
                 percolator_tablet_tablet_requests_total{{kind=\"read\",table=\"other\",tablet=\"other\"}} 7\n\
                 percolator_tablet_tablet_bytes_total{{kind=\"read\",table=\"accounts\",tablet=\"2\"}} {gets}000\n\
                 percolator_tablet_locks 2\n"
            ))
        };
        let pages = gets.map(|gets| ("tablet-0".to_owned(), Ok(page(gets))));
        Sample {
            at: Duration::from_secs(at),
            survey: Ok(survey),
            pages: BTreeMap::from_iter(pages),
        }
    }

    #[test]
    fn load_is_drawn_from_two_looks() {
        let mut top = Top::default();
        top.take(seen(0, tests::well(), Some(1_000)));
        top.take(seen(2, tests::well(), Some(3_000)));
        let drawn = frame(&mut top);
        for words in [
            "c1 at 127.0.0.1:7400: healthy",
            "requests/s 1000",
            "read p99 100 us",
            "write p99 -",
            "accounts",
        ] {
            assert!(drawn.contains(words), "{words}\n{drawn}");
        }
        assert_eq!(top.json()["load"]["requests_per_second"], 1000.0);
        assert_eq!(top.json()["load_of"]["tablet-0"]["locks"], 2.0);
        let tablets = &top.json()["load_of_tablets"];
        assert_eq!(tablets["2"]["requests_per_second"], 1000.0, "{tablets}");
        assert_eq!(tablets["2"]["bytes_per_second"], 1e6, "{tablets}");
        // First by table, then by server.
        assert_eq!(top.tablets()[0].id, 1);
        for _ in 0..2 {
            top.key(KeyCode::Char('s'));
        }
        assert_eq!(top.tablets()[0].id, 2);
        let drawn = frame(&mut top);
        assert!(drawn.contains("tablets, by load"), "{drawn}");
        let line = drawn
            .lines()
            .find(|line| line.contains("tablet-1 ") && line.contains("ready"));
        assert!(
            line.is_some_and(|line| line.contains(" 1000       1000 ")),
            "{drawn}"
        );
    }

    #[test]
    fn a_proxy_has_a_load_of_its_own() {
        let mut survey = tests::well();
        survey.servers.push(proxy("proxy-0", 7490));
        let mut top = Top::default();
        for (at, calls) in [(0, 0), (2, 400)] {
            let page = format!(
                "percolator_proxy_requests_total{{method=\"get\",code=\"ok\"}} {calls}\n\
                 percolator_proxy_request_duration_seconds_bucket{{method=\"get\",le=\"0.005\"}} {calls}\n\
                 percolator_proxy_request_duration_seconds_bucket{{method=\"get\",le=\"+Inf\"}} {calls}\n\
                 percolator_proxy_sessions_ended_total{{end=\"committed\"}} {calls}\n\
                 percolator_proxy_sessions_ended_total{{end=\"idle\"}} 9{calls}\n\
                 percolator_proxy_sessions 7\n"
            );
            let mut seen = seen(at, survey.clone(), Some(at * 50));
            seen.pages.insert("proxy-0".into(), Ok(Page::parse(&page)));
            top.take(seen);
        }
        let drawn = frame(&mut top);
        let line = drawn.lines().find(|line| line.starts_with("proxy "));
        let line = line.unwrap_or_default();
        assert!(
            line.contains("up, 7 sessions") && line.contains(" 200 "),
            "{drawn}"
        );
        assert!(line.contains("5.0 ms"), "{drawn}");
        let load = &top.json()["load_of"]["proxy-0"];
        assert_eq!(load["transactions_per_second"], 200.0, "{load}");
        // What clients do at the tablet servers has it already.
        assert_eq!(top.json()["load"]["requests_per_second"], 50.0);
    }

    #[test]
    fn without_metrics_it_says_so_and_problems_are_below() {
        let mut top = Top::default();
        assert!(frame(&mut top).contains("asking the master"));
        top.take(seen(0, tests::ill(), None));
        let drawn = frame(&mut top);
        for words in [
            "no metrics are reached",
            "14 not well",
            "down for 12 s",
            "! nobody gets timestamps",
            "do: ",
        ] {
            assert!(drawn.contains(words), "{words}\n{drawn}");
        }
        top.take(Sample {
            at: Duration::from_secs(1),
            survey: Err("no answer".into()),
            pages: BTreeMap::new(),
        });
        assert!(frame(&mut top).contains("as it was; now no answer"));
    }

    #[test]
    fn longer_lists_than_their_room_are_scrolled_through() {
        let mut survey = tests::well();
        let (server, tablet) = (
            survey.servers[2].clone(),
            survey.tables[0].tablets[1].clone(),
        );
        for number in 2..32 {
            let mut server = server.clone();
            server.name = format!("tablet-{number:02}");
            survey.servers.push(server);
        }
        for number in 3..=50 {
            let mut tablet = tablet.clone();
            tablet.id = number;
            survey.tables[0].tablets.push(tablet);
        }
        let mut top = Top::default();
        top.take(seen(0, survey, None));
        let drawn = frame(&mut top);
        for words in ["servers 1-6 of 33", "tablets, by table, 1-5 of 50", KEYS] {
            assert!(drawn.contains(words), "{words}\n{drawn}");
        }
        assert!(!drawn.contains("tablet-31"), "{drawn}");
        top.key(KeyCode::End);
        let drawn = frame(&mut top);
        assert!(
            drawn.contains("servers 28-33 of 33") && drawn.contains("tablet-31"),
            "{drawn}"
        );
        top.key(KeyCode::Tab);
        for (key, words) in [
            (KeyCode::PageDown, "by table, 2-6 of 50"),
            (KeyCode::End, "by table, 46-50 of 50"),
            (KeyCode::PageUp, "by table, 45-49 of 50"),
            (KeyCode::Home, "by table, 1-5 of 50"),
        ] {
            top.key(key);
            let drawn = frame(&mut top);
            assert!(drawn.contains(words), "{key:?}: {words}\n{drawn}");
            assert!(drawn.contains("servers 28-33 of 33"), "these stay\n{drawn}");
        }
    }

    #[test]
    fn keys_choose_sort_look_into_and_end() {
        let mut top = Top::default();
        top.take(seen(0, tests::well(), None));
        assert_eq!(top.tablets().len(), 2);
        for key in [KeyCode::Down, KeyCode::Down, KeyCode::Down, KeyCode::Enter] {
            assert!(!top.key(key));
        }
        assert_eq!(top.looked_at(), Some("tablet-1"));
        assert_eq!(top.tablets().len(), 1);
        assert!(frame(&mut top).contains("tablets of tablet-1, by table"));
        assert!(!top.key(KeyCode::Char('s')));
        assert_eq!(top.order, TabletOrder::Server);
        assert!(!top.key(KeyCode::Esc), "back first");
        assert!(top.key(KeyCode::Esc));
        assert!(top.key(KeyCode::Char('q')));
    }
}

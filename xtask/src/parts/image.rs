//! Checks of the Dockerfile's text, without a container engine.

use std::path::Path;

use crate::image::{LABELS, PROGRAMS, SERVERS};

const DOCKERFILE: &str = "Dockerfile";

/// The errors in the text of a Dockerfile whose context is this folder.
fn check(text: &str, root: &Path, programs: &[&str]) -> Vec<String> {
    let text = text.replace("\\\n", " ");
    let mut wrong = Vec::new();
    let (mut stages, mut built) = (Vec::new(), String::new());
    // Of the last stage.
    let (mut user, mut folder, mut volumes) = (None, "/", Vec::<&str>::new());
    for line in text.lines().map(str::trim) {
        let mut words = line.split_whitespace();
        let instruction = words.next().unwrap_or_default();
        let (flags, words): (Vec<&str>, Vec<&str>) = words.partition(|word| word.starts_with("--"));
        match (instruction, &words[..]) {
            ("FROM", [_, rest @ ..]) => {
                (user, folder) = (None, "/");
                volumes.clear();
                stages.extend(rest.get(1).copied());
            }
            ("RUN", _) => built.push_str(line),
            ("COPY", [sources @ .., _]) => {
                let stage = flags.iter().find_map(|flag| flag.strip_prefix("--from="));
                for source in sources {
                    let is_there = match stage {
                        None => root.join(source).exists(),
                        Some(stage) => {
                            stages.contains(&stage) && built.contains(source.trim_end_matches('/'))
                        }
                    };
                    if !is_there {
                        wrong.push(format!("{DOCKERFILE}: nothing to copy at {source}: {line}"));
                    }
                }
            }
            ("USER", [name]) => user = Some(*name),
            ("WORKDIR", [path]) => folder = path,
            ("VOLUME", paths) => volumes.extend(paths.iter().copied()),
            _ => {}
        }
    }
    let is_root = |user: &str| matches!(user.split(':').next(), Some("root" | "0"));
    if user.is_none_or(is_root) {
        wrong.push(format!(
            "{DOCKERFILE}: it runs as root: say USER, with a number"
        ));
    }
    if !volumes
        .iter()
        .any(|volume| Path::new(folder).starts_with(volume))
    {
        wrong.push(format!(
            "{DOCKERFILE}: WORKDIR {folder}, where servers keep their data, is in no VOLUME"
        ));
    }
    for program in programs {
        if !built.split_whitespace().any(|word| word == *program) {
            wrong.push(format!("{DOCKERFILE}: {program} is not in the image"));
        }
    }
    wrong
}

const GOOD: &str = "\
FROM rust AS build
COPY Cargo.toml .
RUN cargo build && mkdir /out \\
    && cp percolator /out/
FROM scratch
COPY --from=build --chown=1:1 /out/ /bin/
VOLUME /data
WORKDIR /data
USER 1:1
";

#[test]
fn the_image_is_sound_as_far_as_its_text_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = std::fs::read_to_string(root.join(DOCKERFILE)).unwrap();
    let programs = [&PROGRAMS[..], &SERVERS].concat();
    assert_eq!(check(&text, &root, &programs), Vec::<String>::new());
    for (key, value) in LABELS {
        let label = format!("org.opencontainers.image.{key}=\"{value}\"");
        assert!(text.contains(&label), "{label} is not in the {DOCKERFILE}");
    }
    // A base that moves makes another image of the same commit.
    let base = text
        .lines()
        .find_map(|line| line.strip_prefix("ARG RUST=rust:"));
    let version = base.and_then(|base| base.split('-').next());
    assert_eq!(
        version.map(|version| version.split('.').count()),
        Some(3),
        "{base:?}"
    );
}

#[test]
fn what_is_wrong_is_found() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = |text: &str| check(text, root, &["percolator"]);
    assert_eq!(found(GOOD), Vec::<String>::new());
    for (old, new, said) in [
        ("Cargo.toml .", "Cargo.yaml .", "Cargo.yaml"),
        ("/out/ /bin/", "/in/ /bin/", "/in/"),
        ("--from=build", "--from=built", "/out/"),
        ("USER 1:1", "USER root", "root"),
        ("USER 1:1", "USER 0:0", "root"),
        ("USER 1:1", "", "root"),
        ("VOLUME /data", "VOLUME /elsewhere", "VOLUME"),
        ("WORKDIR /data", "", "WORKDIR /,"),
        ("cp percolator", "cp percolators", "percolator is not"),
    ] {
        assert!(GOOD.contains(old), "{old}");
        let wrong = found(&GOOD.replace(old, new));
        assert!(
            wrong.len() == 1 && wrong[0].contains(said),
            "{old} {new}: {wrong:?}"
        );
    }
}

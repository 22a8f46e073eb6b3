//! How much memory the system lets this process take, as its control group says.

use std::path::{Path, PathBuf};

/// The mount of the control groups, and the process's own groups.
const GROUPS: &str = "/sys/fs/cgroup";
const OURS: &str = "/proc/self/cgroup";
/// The first version of control groups says this or more where there's no limit.
const NO_LIMIT: u64 = 1 << 62;

/// In bytes; zero where no limit is set, or none is known.
pub(crate) fn limit() -> u64 {
    let ours = std::fs::read_to_string(OURS).unwrap_or_default();
    limit_in(Path::new(GROUPS), &ours)
}

/// A group is held to its own limit and to those of the groups around it. In a container ours is the top one, whatever
/// the first version of control groups calls it.
fn limit_in(groups: &Path, ours: &str) -> u64 {
    let limits = ours.lines().flat_map(|line| {
        let of_version_2 = line.strip_prefix("0::/");
        let of_version_1 = line.split_once(":memory:/").map(|(_, path)| path);
        let (root, path, file) = match (of_version_2, of_version_1) {
            (Some(path), _) => (groups.to_owned(), path, "memory.max"),
            (None, Some(path)) => (groups.join("memory"), path, "memory.limit_in_bytes"),
            (None, None) => (PathBuf::new(), "", ""),
        };
        let around = Path::new(path).ancestors();
        around.filter_map(move |group| {
            let limit = std::fs::read_to_string(root.join(group).join(file)).ok()?;
            // "max" is none.
            limit.trim().parse().ok()
        })
    });
    limits.filter(|limit| *limit < NO_LIMIT).min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_of_the_groups_around_counts() {
        let groups = tempfile::tempdir().unwrap();
        let say = |file: &str, limit: &str| {
            let file = groups.path().join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, limit).unwrap();
        };
        let limit = |ours: &str| limit_in(groups.path(), ours);
        assert_eq!(limit("0::/\n"), 0, "nothing is known");
        say("pods/one/memory.max", "max\n");
        assert_eq!(limit("0::/pods/one\n"), 0);
        say("pods/memory.max", "268435456\n");
        assert_eq!(limit("0::/pods/one\n"), 268_435_456);
        say("pods/one/memory.max", "1048576\n");
        assert_eq!(limit("1:cpu:/x\n0::/pods/one\n"), 1_048_576);

        let old = "5:cpu:/pods\n4:memory:/pods/one\n0::/\n";
        assert_eq!(limit(old), 0);
        say("memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(limit(old), 0);
        say("memory/pods/one/memory.limit_in_bytes", "8192\n");
        assert_eq!(limit(old), 8192);
        // As a container sees itself: the path is the host's.
        assert_eq!(limit("4:memory:/pods/another\n"), 0);
        say("memory/memory.limit_in_bytes", "4096\n");
        assert_eq!(limit("4:memory:/pods/another\n"), 4096);
    }
}

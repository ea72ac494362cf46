package sqlite

// The table is kine's (github.com/k3s-io/kine, pkg/drivers/sqlite), and so are
// its rows, so that kine, and an older kedge that used kine, can use the database
// again. The id of a row is its revision. A row is never changed. A row that
// follows another one of the same name has the id of that row as prev_revision.
// old_value stays empty: it would be the value of the previous row, which exists
// as long as it can be read.
//
// Of kine's seven indexes only one is worth its cost. Each of the others would
// cost one more page per write. A kedge that uses kine makes them again if it
// needs them. kine_ending_index is kedge's own. It has only the rows that end a
// key, now or later. These are few, and other rows cost it nothing.
//
//upstream:relies-on github.com/k3s-io/kine/pkg/drivers/sqlite/sqlite.go schema
const schema = `
	CREATE TABLE IF NOT EXISTS kine (
		id INTEGER PRIMARY KEY AUTOINCREMENT,
		name TEXT,
		created INTEGER,
		deleted INTEGER,
		create_revision INTEGER,
		prev_revision INTEGER,
		lease INTEGER,
		value BLOB,
		old_value BLOB
	);
	CREATE INDEX IF NOT EXISTS kine_name_index ON kine (name);
	CREATE INDEX IF NOT EXISTS kine_ending_index ON kine (name) WHERE lease != 0 OR deleted != 0;
	DROP INDEX IF EXISTS kine_name_id_index;
	DROP INDEX IF EXISTS kine_id_deleted_index;
	DROP INDEX IF EXISTS kine_prev_revision_index;
	DROP INDEX IF EXISTS kine_name_prev_revision_uindex;
	DROP INDEX IF EXISTS kine_id_compact_rev_key_with_prev_revision_index;`

// compactKey names the row whose prev_revision is the revision up to which
// superseded rows are gone. It is not a key of clients: theirs is
// apiserverCompactKey.
//
//upstream:relies-on github.com/k3s-io/kine/pkg/logstructured/sqllog/sql.go SQLLog.compactStart
const compactKey = "compact_rev_key"

const (
	// getSQL finds the last row of a key at a revision.
	getSQL = `
		SELECT id, name, created, deleted, COALESCE(create_revision, 0), lease, value
		FROM kine WHERE name = ? AND id <= ? ORDER BY id DESC LIMIT 1`

	// listSQL finds the keys of a range that existed at a revision, in order. %s
	// is the value.
	listSQL = `
		SELECT id, name, created, deleted, COALESCE(create_revision, 0), lease, %s
		FROM kine AS kv
		WHERE name >= ?1 AND name < ?2 AND id <= ?3 AND deleted = 0
			AND id = (SELECT id FROM kine WHERE name = kv.name AND id <= ?3 ORDER BY id DESC LIMIT 1)
		ORDER BY name LIMIT ?4`

	// countSQL counts the keys of a range that existed at a revision: all keys
	// that had a row by then, minus those whose last row is a deletion. It reads
	// only indexes, because it runs often: after each page of a list, and before
	// the API server lists from its cache.
	countSQL = `
		SELECT (
			SELECT COUNT(*) FROM (SELECT DISTINCT name FROM kine WHERE name >= ?1 AND name < ?2 AND id <= ?3)
		) - (
			SELECT COUNT(*)
			FROM kine AS kv
			WHERE name >= ?1 AND name < ?2 AND id <= ?3 AND deleted != 0
				AND id = (SELECT id FROM kine WHERE name = kv.name AND id <= ?3 ORDER BY id DESC LIMIT 1)
		)`

	// eventsSQL finds the changes after one revision and up to another, with the
	// values before them. The + sign keeps SQLite from using the index of names,
	// because the range of ids is short.
	eventsSQL = `
		SELECT kv.id, kv.name, kv.created, kv.deleted, COALESCE(kv.create_revision, 0), kv.lease, kv.value,
			p.id, p.created, p.create_revision, p.lease, p.value
		FROM kine AS kv LEFT JOIN kine AS p ON p.id = kv.prev_revision AND p.deleted = 0
		WHERE kv.id > ?1 AND kv.id <= ?2 AND (?3 = '' OR +kv.name >= ?3 AND +kv.name < ?4)
			AND +kv.name NOT LIKE 'gap-%' AND +kv.name != '` + compactKey + `'
		ORDER BY kv.id`

	// leasesSQL finds the rows that show which keys have a lease. SQLite has no
	// statistics, so without INDEXED BY it would read the whole database.
	leasesSQL = `
		SELECT id, name, lease, deleted
		FROM kine INDEXED BY kine_ending_index WHERE lease != 0 OR deleted != 0 ORDER BY id`

	// historySQL finds all changes that can be read, in order. The + sign is
	// explained at eventsSQL.
	historySQL = `
		SELECT id, name, created, deleted, COALESCE(create_revision, 0), lease, value
		FROM kine WHERE +name NOT LIKE 'gap-%' AND +name != '` + compactKey + `'
		ORDER BY id`

	insertSQL = `
		INSERT INTO kine (id, name, created, deleted, create_revision, prev_revision, lease, value)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?)`

	// supersededSQL counts the rows that a sweep up to a revision would handle.
	supersededSQL = `
		SELECT COUNT(*) FROM kine
		WHERE id > (SELECT MAX(prev_revision) FROM kine WHERE name = '` + compactKey + `') AND id <= ?
			AND (prev_revision != 0 OR deleted != 0) AND name != '` + compactKey + `'`

	sizeSQL = `
		SELECT (page_count - freelist_count) * page_size
		FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size()`
)

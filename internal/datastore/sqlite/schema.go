package sqlite

// The table is kine's (github.com/k3s-io/kine, pkg/drivers/sqlite), and so are
// its rows: kine, and a kedge that used it, can go on with the database. The id
// of a row is its revision. A row is never changed; one that follows another of
// the same name has that one's id as prev_revision. old_value stays empty: it is
// the value of the row before, which is there for as long as it may be asked for.
//
// Of kine's seven indexes only one pays. Each of the others would cost a page
// more per write; a kedge that used kine makes them again when it needs them.
// kine_ending_index is kedge's own, of the rows that end a key, now or later:
// they are few among many, and all others cost it nothing.
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

// compactKey names the row that has, as prev_revision, the revision up to which
// superseded rows are gone. It is no key of a client: theirs is apiserverCompactKey.
//
//upstream:relies-on github.com/k3s-io/kine/pkg/logstructured/sqllog/sql.go SQLLog.compactStart
const compactKey = "compact_rev_key"

const (
	// The row that was a key's last one at a revision.
	getSQL = `
		SELECT id, name, created, deleted, create_revision, lease, value
		FROM kine WHERE name = ? AND id <= ? ORDER BY id DESC LIMIT 1`

	// The keys of a range that existed at a revision, in order. %s is the value.
	listSQL = `
		SELECT id, name, created, deleted, create_revision, lease, %s
		FROM kine AS kv
		WHERE name >= ?1 AND name < ?2 AND id <= ?3 AND deleted = 0
			AND id = (SELECT id FROM kine WHERE name = kv.name AND id <= ?3 ORDER BY id DESC LIMIT 1)
		ORDER BY name LIMIT ?4`

	// How many keys of a range existed at a revision: all that had a row by then,
	// less those whose last one is a deletion. That reads indexes only, for a
	// page of a list is counted behind too, and so is what the API server asks
	// for before it lists from its cache.
	countSQL = `
		SELECT (
			SELECT COUNT(*) FROM (SELECT DISTINCT name FROM kine WHERE name >= ?1 AND name < ?2 AND id <= ?3)
		) - (
			SELECT COUNT(*)
			FROM kine AS kv
			WHERE name >= ?1 AND name < ?2 AND id <= ?3 AND deleted != 0
				AND id = (SELECT id FROM kine WHERE name = kv.name AND id <= ?3 ORDER BY id DESC LIMIT 1)
		)`

	// What happened after a revision, up to another, and what was before it.
	// The sign keeps SQLite from the index of names: the range of ids is short.
	eventsSQL = `
		SELECT kv.id, kv.name, kv.created, kv.deleted, kv.create_revision, kv.lease, kv.value,
			p.id, p.created, p.create_revision, p.lease, p.value
		FROM kine AS kv LEFT JOIN kine AS p ON p.id = kv.prev_revision AND p.deleted = 0
		WHERE kv.id > ?1 AND kv.id <= ?2 AND (?3 = '' OR +kv.name >= ?3 AND +kv.name < ?4)
			AND +kv.name NOT LIKE 'gap-%' AND +kv.name != '` + compactKey + `'
		ORDER BY kv.id`

	// The rows that say which keys have a lease. Without being told so, SQLite
	// would read all of the database for that, as it has no statistics.
	leasesSQL = `
		SELECT id, name, lease, deleted
		FROM kine INDEXED BY kine_ending_index WHERE lease != 0 OR deleted != 0 ORDER BY id`

	// All that can be asked for, as it happened. The sign is as in eventsSQL.
	historySQL = `
		SELECT id, name, created, deleted, create_revision, lease, value
		FROM kine WHERE +name NOT LIKE 'gap-%' AND +name != '` + compactKey + `'
		ORDER BY id`

	insertSQL = `
		INSERT INTO kine (id, name, created, deleted, create_revision, prev_revision, lease, value)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?)`

	// How many rows a sweep up to a revision is for.
	supersededSQL = `
		SELECT COUNT(*) FROM kine
		WHERE id > (SELECT MAX(prev_revision) FROM kine WHERE name = '` + compactKey + `') AND id <= ?
			AND (prev_revision != 0 OR deleted != 0) AND name != '` + compactKey + `'`

	sizeSQL = `
		SELECT (page_count - freelist_count) * page_size
		FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size()`
)

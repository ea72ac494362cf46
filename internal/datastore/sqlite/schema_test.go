package sqlite

import (
	"slices"
	"testing"
)

// Queries that run with every list and at every start must not read each row:
// with 100,000 objects that takes seconds.
func TestPlans(t *testing.T) {
	b := start(t, t.TempDir())
	const byName = " USING COVERING INDEX kine_name_index "
	for _, test := range []struct {
		name, statement string
		args            []any
		want            []string
	}{
		{"count", countSQL, []any{"a", "b", 1}, []string{
			"SEARCH kine" + byName + "(name>? AND name<?)",
			"SEARCH kv USING INDEX kine_ending_index (name>? AND name<?)",
			"SEARCH kine" + byName + "(name=? AND rowid<?)",
		}},
		{"leases", leasesSQL, nil, []string{"SCAN kine USING INDEX kine_ending_index"}},
	} {
		rows, err := b.reader.db.Query("EXPLAIN QUERY PLAN "+test.statement, test.args...)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		var steps []string
		for rows.Next() {
			var id, parent, unused int
			var step string
			if err := rows.Scan(&id, &parent, &unused, &step); err != nil {
				t.Fatal(err)
			}
			steps = append(steps, step)
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		for _, want := range test.want {
			if !slices.Contains(steps, want) {
				t.Errorf("the plan of %s is %q, want %q in it", test.name, steps, want)
			}
		}
	}
}

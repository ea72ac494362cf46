package apistorage

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
)

// How a test ended, in the words of test2json.
const (
	pass = "pass"
	fail = "fail"
	skip = "skip"
)

const keepsSome = "it compacts at a revision, and wants to find nothing before it. A database keeps the last 1,000 revisions"

// cannot are tests that fail for a reason other than a fault.
var cannot = []struct {
	reason     string
	datastores []string
	// pkg is the package, or empty for both.
	pkg   string
	tests []string
}{
	{
		reason:     "it sets the interval of etcd at which watches learn the revision to a second. kedge's is a minute, and fixed",
		datastores: []string{"SQLite", "etcd", "PostgreSQL", "MariaDB"},
		tests:      []string{"TestWatch/ProgressNotify"},
	},
	{
		reason:     "it has the revisions of a new etcd as numbers, from 1 on. A new database begins at a later revision",
		datastores: []string{"SQLite", "PostgreSQL", "MariaDB"},
		tests: append(listsAt("first", "second", "third", "fourth", "fifth", "six", "seventh"),
			"TestTooLargeResourceVersionErrorForWatchList",
			"TestWatch/WatchSemantics/allowWatchBookmarks=false,_sendInitialEvents=false,_RV=1",
			"TestWatch/WatchSemantics/allowWatchBookmarks=true,_sendInitialEvents=false,_RV=1"),
	},
	{
		reason:     keepsSome,
		datastores: []string{"PostgreSQL", "MariaDB"},
		tests: append(listsBefore("TestList/rangeStream=false", "TestList/rangeStream=true", "TestLists/ListFromCacheSnapshot=false/List", "TestLists/ListFromCacheSnapshot=true/List"),
			"TestCompact", "TestCompactRevision", "TestWatchChanSyncStreamCompactionError"),
	},
	{
		reason:     keepsSome,
		datastores: []string{"PostgreSQL", "MariaDB"},
		pkg:        "etcd3",
		tests:      []string{"TestListInconsistentContinuation", "TestWatch/WatchFromZero"},
	},
	{
		reason:     "it runs three etcds at once. kedge's etcd has fixed ports, as one host has one of it",
		datastores: []string{"etcd"},
		tests:      []string{"TestPrefix"},
	},
}

// listsAt returns the tests that list objects as they were after a write.
func listsAt(writes ...string) (tests []string) {
	for _, write := range writes {
		tests = append(tests, fmt.Sprintf("TestLists/ListFromCacheSnapshot=false/List/test_List_with_resource_version_of_%s_write,_match=Exact", write))
	}
	return tests
}

// listsBefore returns the tests that list objects as they were before the first write.
func listsBefore(groups ...string) (tests []string) {
	for _, group := range groups {
		for _, list := range []string{
			"test_List_on_existing_key_with_resource_version_set_before_first_write,_match=Exact",
			"test_List_with_continue,_resource_version_before_first_write",
			"test_List_with_resource_version_set_before_first_write,_match=Exact",
		} {
			tests = append(tests, group+"/"+list)
		}
	}
	return tests
}

// why returns why a test fails, or nothing if it must pass.
func (r results) why(test string) string {
	for _, c := range cannot {
		if slices.Contains(c.datastores, r.datastore) && (c.pkg == "" || c.pkg == r.pkg) && slices.Contains(c.tests, test) {
			return c.reason
		}
	}
	return ""
}

// results say how the tests of a package ended on a datastore.
type results struct {
	datastore, pkg string
	ended          map[string]string
}

// leaves returns the tests that ended in a way, without those that contain others. A test that fails although none that it contains
// fails is one of them.
func (r results) leaves(how string) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(r.ended)) {
		leaf := r.ended[name] == how
		for other, ended := range r.ended {
			leaf = leaf && (!strings.HasPrefix(other, name+"/") || how == fail && ended != fail)
		}
		if leaf {
			names = append(names, name)
		}
	}
	return names
}

// judge wants all tests to pass but those that cannot, and those to fail.
func (r results) judge(t *testing.T) {
	t.Helper()
	for _, name := range r.leaves(fail) {
		if r.why(name) == "" {
			t.Errorf("%s fails", name)
		}
	}
	for _, name := range r.leaves(pass) {
		if r.why(name) != "" {
			t.Errorf("%s passes: take it from the table of those that cannot", name)
		}
	}
}

// writePage writes a table of how the tests ended, below build.
func writePage(t *testing.T, all []results) {
	t.Helper()
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	var page strings.Builder
	page.WriteString("# Kubernetes' storage tests\n\n| datastore | package | passed | failed | cannot pass | skipped |\n| --- | --- | --: | --: | --: | --: |\n")
	var rest strings.Builder
	for _, r := range all {
		failed, left := 0, 0
		for _, name := range r.leaves(fail) {
			if reason := r.why(name); reason != "" {
				left++
				fmt.Fprintf(&rest, "- %s, %s, `%s`: %s.\n", r.datastore, r.pkg, name, reason)
			} else {
				failed++
			}
		}
		fmt.Fprintf(&page, "| %s | `%s` | %d | %d | %d | %d |\n", r.datastore, r.pkg, len(r.leaves(pass)), failed, left, len(r.leaves(skip)))
	}
	if rest.Len() > 0 {
		page.WriteString("\n## Those that cannot pass\n\n" + rest.String())
	}
	file := filepath.Join(repository, "build", "apistorage", "results.md")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(page.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("the results are in %s", file)
}

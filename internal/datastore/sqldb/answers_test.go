package sqldb

import (
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/client/v3/kubernetes"
)

// Names that differ in case are different, and sorted by their bytes. A list in parts
// depends on that.
func TestNamesKeepTheirCase(t *testing.T) {
	eachDatabase(t, func(t *testing.T, i *instance) {
		r := run(t, i.endpoint("names"))
		want := []string{"ADMIN", "Admin", "B", "admin", "b", "c-d", "c.d"}
		for _, name := range []string{"b", "B", "c.d", "Admin", "admin", "c-d", "ADMIN"} {
			put(t, r.local, name, name, 0)
		}
		var got []string
		options := kubernetes.ListOptions{Limit: 2}
		for {
			page, err := r.local.Kubernetes.List(t.Context(), prefix, options)
			if err != nil {
				t.Fatal(err)
			}
			for _, kv := range page.Kvs {
				got = append(got, strings.TrimPrefix(string(kv.Key), prefix))
				if string(kv.Value) != got[len(got)-1] {
					t.Errorf("%s has the value %s", kv.Key, kv.Value)
				}
			}
			if page.Count <= int64(len(page.Kvs)) {
				break
			}
			options.Revision, options.Continue = page.Revision, string(page.Kvs[len(page.Kvs)-1].Key)+"\x00"
		}
		if !slices.Equal(got, want) {
			t.Errorf("listed %q, want %q", got, want)
		}
		none, err := r.local.Kubernetes.Get(t.Context(), prefix+"aDMIN", kubernetes.GetOptions{})
		if err != nil || none.KV != nil {
			t.Errorf("a key with other letters: got %v, %v, want none", none.KV, err)
		}
	})
}

// MariaDB shows changes early by default. PostgreSQL never does.
func TestAdvice(t *testing.T) {
	eachDatabase(t, func(t *testing.T, i *instance) {
		advice := func(database string) string {
			t.Helper()
			r := run(t, i.endpoint(database))
			db := sql.OpenDB(r.target.connector)
			defer db.Close()
			text, err := r.advice(t.Context(), db)
			if err != nil {
				t.Fatal(err)
			}
			return text
		}
		text := advice("before")
		if strings.Contains(i.command[0], "postgres") {
			if text != "" {
				t.Errorf("got %q, want none", text)
			}
			return
		}
		if !strings.Contains(text, "Set log_bin and sync_binlog=1") {
			t.Errorf("got %q, want the settings", text)
		}
		i.stop()
		i.command = append(i.command, "--log-bin=binlog", "--sync-binlog=1")
		i.start()
		if text := advice("after"); text != "" {
			t.Errorf("with these settings: got %q, want none", text)
		}
	})
}

// A change is being written while one with a later revision is complete. A read at
// that revision waits for it: at its revision, every answer is right for ever.
func TestReadsWaitForEarlierRevisions(t *testing.T) {
	eachDatabase(t, func(t *testing.T, i *instance) {
		r := run(t, i.endpoint("waiting"))
		first := put(t, r.local, "gone", "1", 0)
		db := sql.OpenDB(r.target.connector)
		defer db.Close()
		slow, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = slow.Rollback() }()
		bound := r.target.dialect.bind
		if _, err := slow.ExecContext(t.Context(), bound(create), prefix+"slow", 0, 0, []byte("1")); err != nil {
			t.Fatal(err)
		}
		if _, err := slow.ExecContext(t.Context(), bound(remove), first, prefix+"gone"); err != nil {
			t.Fatal(err)
		}
		last := put(t, r.local, "last", "1", 0)

		k, ctx := r.local.Kubernetes, soon(t)
		answers := make(chan string)
		ask := func(what string, present bool, request func(key string) (*mvccpb.KeyValue, int64, error)) {
			key := prefix + "slow"
			if !present {
				key = prefix + "gone"
			}
			kv, revision, err := request(key)
			if err != nil || present != (kv != nil) || revision < last {
				answers <- fmt.Sprintf("%s %s: got %v at %d, %v, want one that is right at %d", what, key, kv, revision, err, last)
				return
			}
			answers <- ""
		}
		get := func(key string) (*mvccpb.KeyValue, int64, error) {
			got, err := k.Get(ctx, key, kubernetes.GetOptions{})
			return got.KV, got.Revision, err
		}
		update := func(key string) (*mvccpb.KeyValue, int64, error) {
			got, err := k.OptimisticPut(ctx, key, nil, first-1, kubernetes.PutOptions{GetOnFailure: true})
			return got.KV, got.Revision, err
		}
		del := func(key string) (*mvccpb.KeyValue, int64, error) {
			got, err := k.OptimisticDelete(ctx, key, first-1, kubernetes.DeleteOptions{GetOnFailure: true})
			return got.KV, got.Revision, err
		}
		asked := 0
		for what, request := range map[string]func(string) (*mvccpb.KeyValue, int64, error){"get": get, "update": update, "delete": del} {
			for _, present := range []bool{true, false} {
				asked++
				go ask(what, present, request)
			}
		}
		select {
		case answer := <-answers:
			t.Errorf("an answer before the earlier change was complete: %q", answer)
			asked--
		case <-time.After(200 * time.Millisecond):
		}
		if err := slow.Commit(); err != nil {
			t.Fatal(err)
		}
		for range asked {
			if answer := <-answers; answer != "" {
				t.Error(answer)
			}
		}
		old, err := k.List(ctx, prefix, kubernetes.ListOptions{Revision: first})
		if err != nil || old.Revision < last {
			t.Errorf("list at revision %d: got %v, %v, want the current revision in the answer, which is %d or more", first, old, err, last)
		}
	})
}

package sqlite

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// killedWriter is the child of TestKill. It serves folder, writes through the etcd
// API from several clients without end, and prints each acknowledged key. A setting
// of SQLite, if one is given, makes it less safe.
func killedWriter(folder, setting string) {
	d := New(config(folder))
	ready := make(chan struct{})
	go func() {
		if err := d.Run(context.Background(), func() { close(ready) }); err != nil {
			fmt.Println("failed", err)
			os.Exit(1)
		}
	}()
	<-ready
	// SQLite refuses this setting within a transaction.
	for setting != "" && d.backend.writer.log.exec(setting) != nil {
		time.Sleep(time.Millisecond)
	}
	fmt.Println("ready")
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{d.Endpoint().URL}, Logger: zap.NewNop()})
	if err != nil {
		panic(err)
	}
	go renew(d.backend)
	for worker := range 4 {
		go func() {
			for i := 0; ; i++ {
				key := fmt.Sprintf("/registry/%d/%d/%d", os.Getpid(), worker, i)
				done, err := create(client, key, strings.Repeat("x", rand.IntN(5000)))
				if err == nil && i%5 == 4 {
					done, err = update(client, key, "changed", done.Header.Revision)
				}
				if err != nil || !done.Succeeded {
					fmt.Println("failed", key, err)
					return
				}
				// Each line is written in one call, so that the reader sees all
				// of it or nothing.
				fmt.Printf("%s %d\n", key, done.Header.Revision)
			}
		}()
	}
	select {}
}

// renew renews a Lease and writes events without end. All of these are in memory
// first.
func renew(b *Backend) {
	ctx := context.Background()
	key := leasePrefix + "kube-node-lease/a"
	for i := 0; ; i++ {
		_, kv, err := b.Get(ctx, key, 0, false)
		if err != nil {
			return
		}
		value := leaseValue(os.Getenv("holder"), i)
		if kv == nil {
			_, err = b.Create(ctx, key, value, 0)
		} else {
			_, _, _, err = b.Update(ctx, key, value, kv.ModRevision, 0)
		}
		if err == nil && i%10 == 0 {
			_, err = b.Create(ctx, fmt.Sprintf("%s%d-%d", eventPrefix, os.Getpid(), i), value, 3600)
		}
		if err != nil {
			fmt.Println("failed", key, err)
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// witness watches from another process, and remembers what it saw.
type witness struct {
	seen map[int64]string
	last int64
}

// watch watches all keys on the socket of folder, from now on until the socket
// ends.
func (w *witness) watch(t *testing.T, folder string) (wait func()) {
	c := client(t, "unix://"+config(folder).Socket)
	changes := c.Watch(context.Background(), "/registry/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	<-changes
	done := make(chan struct{})
	go func() {
		defer close(done)
		for response := range changes {
			for _, e := range response.Events {
				w.see(t, e.Kv.ModRevision, string(e.Kv.Key)+" "+string(e.Kv.Value))
			}
			if response.Err() != nil {
				return
			}
		}
	}()
	return func() { c.Close(); <-done }
}

// see fails the test if the revision had another content before.
func (w *witness) see(t *testing.T, revision int64, what string) {
	if before, ok := w.seen[revision]; ok && before != what {
		t.Errorf("revision %d was %.60q and is %.60q", revision, before, what)
	}
	w.seen[revision] = what
	w.last = max(w.last, revision)
}

// A kill -9 at any time loses no durable key that was acknowledged. No revision
// is used again for something else, and clients that saw lost changes notice it.
func TestKill(t *testing.T) {
	folder := shortDir(t)
	acknowledged := map[string]string{}
	w := &witness{seen: map[int64]string{}}
	for round := range 8 {
		command := exec.Command(os.Args[0])
		command.Env = append(os.Environ(), childVariable+"=writer:"+folder, "holder=a")
		command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		command.Stderr = os.Stderr
		output, err := command.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(output)
		wait := func() {}
		// The last rounds also kill the child while it starts.
		var timer *time.Timer
		if kill := func() { command.Process.Kill() }; round >= 5 {
			timer = time.AfterFunc(time.Duration(rand.IntN(300))*time.Millisecond, kill)
		} else {
			for lines.Scan() && lines.Text() != "ready" {
				t.Log(lines.Text())
			}
			wait = w.watch(t, folder)
			timer = time.AfterFunc(time.Duration(100+rand.IntN(900))*time.Millisecond, kill)
		}
		for lines.Scan() {
			key, revision, ok := strings.Cut(lines.Text(), " ")
			switch {
			case key == "failed":
				t.Error(lines.Text())
			case ok:
				acknowledged[key] = revision
			}
		}
		timer.Stop()
		command.Wait()
		wait()
		if round < 5 && round%2 == 0 {
			checkAfterKill(t, folder, w)
		}
	}
	r := run(t, folder)
	found, err := r.Get(context.Background(), "/registry/", clientv3.WithRange("/registry0"))
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]string{}
	for _, kv := range found.Kvs {
		there[string(kv.Key)] = fmt.Sprint(kv.ModRevision)
	}
	lost := 0
	for key, revision := range acknowledged {
		// An update may have been made without having been acknowledged.
		if there[key] == "" || len(there[key]) == len(revision) && there[key] < revision {
			lost++
			t.Errorf("%s was acknowledged at revision %s, found %q", key, revision, there[key])
		}
	}
	if len(acknowledged) == 0 {
		t.Error("nothing was written")
	}
	t.Logf("%d acknowledged, %d found, %d lost; %d events seen", len(acknowledged), len(there), lost, len(w.seen))
}

// checkAfterKill starts the datastore in folder after a kill, and compares it
// with what w saw.
func checkAfterKill(t *testing.T, folder string, w *witness) {
	t.Helper()
	ctx := context.Background()
	r := run(t, folder)
	defer r.stop(t)
	// w continues where it was, and is told to list again.
	answer := <-r.Watch(ctx, "/registry/", clientv3.WithPrefix(), clientv3.WithRev(w.last+1))
	if !errors.Is(answer.Err(), rpctypes.ErrCompacted) {
		t.Errorf("a watch from before got %+v", answer)
	}
	all, err := r.Get(ctx, "/registry/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	if all.Header.Revision <= w.last {
		t.Errorf("the revision is %d, %d was seen", all.Header.Revision, w.last)
	}
	for _, kv := range all.Kvs {
		if strings.HasPrefix(string(kv.Key), leasePrefix) && kv.ModRevision <= w.last {
			t.Errorf("a Lease is at revision %d, before %d", kv.ModRevision, w.last)
		}
		w.see(t, kv.ModRevision, string(kv.Key)+" "+string(kv.Value))
	}
}

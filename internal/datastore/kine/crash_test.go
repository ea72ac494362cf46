package kine

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// writer is the child of TestKill: it serves folder and writes through the etcd
// API from several clients, printing each key that was acknowledged, for ever.
func writer(folder string) {
	d := New(config(folder))
	ready := make(chan struct{})
	go func() {
		if err := d.Run(context.Background(), func() { close(ready) }); err != nil {
			fmt.Println("failed", err)
			os.Exit(1)
		}
	}()
	<-ready
	fmt.Println("ready")
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{d.Endpoint().URL}, Logger: zap.NewNop()})
	if err != nil {
		panic(err)
	}
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
				// One write call for one line: the reader sees all of it or none.
				fmt.Printf("%s %d\n", key, done.Header.Revision)
			}
		}()
	}
	select {}
}

// Every key that was acknowledged before a kill -9 is there after it.
func TestKill(t *testing.T) {
	folder := shortDir(t)
	acknowledged := map[string]string{}
	for round := range 6 {
		command := exec.Command(os.Args[0])
		command.Env = append(os.Environ(), childVariable+"=writer:"+folder)
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
		// The last rounds kill it while it starts, too.
		var timer *time.Timer
		if kill := func() { command.Process.Kill() }; round >= 4 {
			timer = time.AfterFunc(time.Duration(rand.IntN(300))*time.Millisecond, kill)
		} else {
			for lines.Scan() && lines.Text() != "ready" {
				t.Log(lines.Text())
			}
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
		// An update may have been made but not acknowledged.
		if there[key] == "" || len(there[key]) == len(revision) && there[key] < revision {
			lost++
			t.Errorf("%s was acknowledged at revision %s, found %q", key, revision, there[key])
		}
	}
	if len(acknowledged) == 0 {
		t.Error("nothing was written")
	}
	t.Logf("%d acknowledged, %d found, %d lost", len(acknowledged), len(there), lost)
}

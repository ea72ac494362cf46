package cluster

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
)

// Snapshots is the folder of a server's snapshots.
const Snapshots = "/var/lib/kedge/server/snapshots"

// Snapshot runs `kedge snapshot` on a server's host.
func Snapshot(host *harness.Host, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), harness.Slowly(Patience))
	defer cancel()
	output, err := host.Kedge(ctx, append([]string{"snapshot"}, args...)...).CombinedOutput()
	return strings.TrimSpace(string(output)), err
}

// MustSnapshot is Snapshot, except that it fails the test on an error.
func (c *Cluster) MustSnapshot(host *harness.Host, args ...string) string {
	c.Helper()
	output, err := Snapshot(host, args...)
	if err != nil {
		c.Fatalf("kedge snapshot %s on %s: %v\n%s", strings.Join(args, " "), host.Name, err, output)
	}
	return output
}

// RefusedSnapshot fails the test unless Snapshot fails with a message that has each of the words.
func (c *Cluster) RefusedSnapshot(host *harness.Host, words []string, args ...string) {
	c.Helper()
	output, err := Snapshot(host, args...)
	if err == nil {
		c.Errorf("kedge snapshot %s: accepted\n%s", strings.Join(args, " "), output)
	}
	for _, word := range words {
		if !strings.Contains(output, word) {
			c.Errorf("kedge snapshot %s: %q lacks %q", strings.Join(args, " "), output, word)
		}
	}
}

// Objects returns the UID, the version and the content of every ConfigMap, Secret, Service and
// ServiceAccount of the default namespace. Of its Deployments and pods, which controllers change, it
// returns the UID.
func (c *Cluster) Objects() string {
	c.Helper()
	fixed := c.Kubectl("get", "configmaps,secrets,services,serviceaccounts", "--sort-by=.metadata.uid",
		"-o", `jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.uid} {.metadata.resourceVersion} {.data}{"\n"}{end}`)
	return fixed + "\n" + c.Kubectl("get", "deployments,pods", "--sort-by=.metadata.uid",
		"-o", `jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.uid}{"\n"}{end}`)
}

// Saved is the state of a cluster when it was saved.
type Saved struct {
	*Cluster
	// File is the path of the snapshot, on the host of Cluster's server.
	File       string
	objects    string
	containers map[string]string
}

// many is how many ConfigMaps SaveAndChange makes.
const many = 300

// SaveAndChange fills a cluster, saves it on a host of one of its servers, and changes it. It
// checks that a restore is refused while servers run.
func (c *Cluster) SaveAndChange(host *harness.Host) *Saved {
	c.Helper()
	c.RunDeployment("many")
	c.each("create", func(name string) error {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"value": "before"}}
		_, err := c.Client.CoreV1().ConfigMaps(Namespace).Create(c.Context(), object, metav1.CreateOptions{})
		return err
	})
	c.Kubectl("delete", "configmap", "many-0")
	s := &Saved{Cluster: c, objects: c.Objects(), containers: c.Containers()}
	location := c.MustSnapshot(host, "save", "--name=all")
	name := filepath.Base(location)
	if location != "file://"+Snapshots+"/"+name || !strings.HasPrefix(name, "all-"+host.Name+"-") {
		c.Fatalf("saved as %q", location)
	}
	if list := c.MustSnapshot(host, "list"); !strings.Contains(list, name) {
		c.Errorf("listed are\n%s", list)
	}
	c.Eventually("a SnapshotFile of "+host.Name, func() error {
		output, err := c.TryKubectl("", "get", "snapshotfiles", "-o", `jsonpath={range .items[*]}{.spec.snapshotName} {.spec.nodeName}{"\n"}{end}`)
		if err == nil && !strings.Contains(output, name+" "+host.Name) {
			err = fmt.Errorf("there are %q", output)
		}
		return err
	})
	text, err := os.ReadFile(host.Path(Snapshots + "/" + name))
	if err != nil {
		c.Fatal(err)
	}
	// All hosts have this folder of the machine. Another test may save a snapshot of the same name.
	folder := "/root/kedge-test-" + rand.Text()
	s.File = filepath.Join(folder, name)
	c.Cleanup(func() { _ = os.RemoveAll(host.Path(folder)) })
	c.Server.Host.WriteFile(s.File, string(text))

	c.each("change", func(name string) error {
		if name == "many-0" {
			return nil
		}
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"value": "after"}}
		_, err := c.Client.CoreV1().ConfigMaps(Namespace).Update(c.Context(), object, metav1.UpdateOptions{})
		return err
	})
	c.Kubectl("create", "configmap", "new")
	c.Kubectl("delete", "configmap", "many-1", "many-2")
	c.Scale("many", 3)
	c.RefusedSnapshot(c.Server.Host, []string{"while the server is stopped", "already runs", "stop"}, "restore", s.File)
	return s
}

// each calls do for each of many names, several at a time.
func (c *Cluster) each(what string, do func(name string) error) {
	c.Helper()
	names := make(chan string)
	var working sync.WaitGroup
	for range 4 {
		working.Go(func() {
			for name := range names {
				if err := do(name); err != nil {
					c.Errorf("%s %s: %v", what, name, err)
				}
			}
		})
	}
	for i := range many {
		names <- fmt.Sprint("many-", i)
	}
	close(names)
	working.Wait()
}

// Attempt is a file in a folder that each host has for itself.
const Attempt = "/opt/attempt.zst"

// Refusals checks that snapshots are refused on a stopped server: damaged ones, and those for another
// server or for a datastore of the kind other.
func (s *Saved) Refusals(other string) {
	s.Helper()
	whole, err := os.ReadFile(s.Server.Host.Path(s.File))
	if err != nil {
		s.Fatal(err)
	}
	for _, test := range []struct {
		name    string
		content []byte
		want    []string
	}{
		{"some bits are others", Flipped(whole), []string{"damaged"}},
		{"the end is missing", whole[:len(whole)*2/3], []string{"is cut off"}},
		{"something else", bytes.Repeat([]byte("no snapshot "), 100), []string{"is not a snapshot of kedge"}},
		{"of a newer kedge", s.With(whole, "kedge", "v1.99.0+kedge.1"), []string{"newer than this one"}},
		{"of another datastore", s.With(whole, "datastore", other), []string{"of the kind " + other + ", and this server's is "}},
	} {
		s.Log(test.name)
		s.Server.Host.WriteFile(Attempt, string(test.content))
		s.RefusedSnapshot(s.Server.Host, test.want, "restore", Attempt)
	}
}

// Flipped returns a snapshot with another bit in each of some bytes. A single bit may mean nothing: compressed data have
// bits that no reader needs.
func Flipped(snapshot []byte) []byte {
	flipped := slices.Clone(snapshot)
	begin := len(flipped) - len(flipped)/8
	for i := range flipped[begin : begin+32] {
		flipped[begin+i] ^= 1
	}
	return flipped
}

// With returns a snapshot whose manifest has another value for key, and a valid checksum.
func (c *Cluster) With(snapshot []byte, key string, value any) []byte {
	c.Helper()
	const signature = "kedge snapshot\n"
	head := 8 + len(signature) + 65
	end := 8 + int(binary.LittleEndian.Uint32(snapshot[4:]))
	var manifest map[string]any
	if err := json.Unmarshal(snapshot[head:end], &manifest); err != nil {
		c.Fatal(err)
	}
	manifest[key] = value
	text, err := json.Marshal(manifest)
	if err != nil {
		c.Fatal(err)
	}
	changed := binary.LittleEndian.AppendUint32(slices.Clone(snapshot[:4]), uint32(len(signature)+65+len(text)))
	changed = fmt.Appendf(changed, "%s%x\n%s", signature, sha256.Sum256(text), text)
	return append(changed, snapshot[end:]...)
}

// WantRestored checks that the cluster is as it was saved, and that controllers continue to work.
// At least this server must run again. Pods that still match keep running.
func (s *Saved) WantRestored() {
	s.Helper()
	s.Client = s.Server.Client()
	s.Eventually("objects to be as they were", func() error {
		if after := s.Objects(); after != s.objects {
			return fmt.Errorf("they are\n%s\nand were\n%s", after, s.objects)
		}
		return nil
	})
	s.WantSameContainers(s.containers)
	s.Scale("many", 3)
	s.Scale("many", 2)
	s.Eventually("the third pod to go", func() error {
		if now := s.Containers(); len(now) != len(s.containers) {
			return fmt.Errorf("there are %v", slices.Sorted(maps.Keys(now)))
		}
		return nil
	})
}

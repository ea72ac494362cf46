package backup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/datastore/backup/chain"
	"github.com/kedge-dev/kedge/internal/datastore/backup/place"
	"github.com/kedge-dev/kedge/internal/datastore/backup/records"
)

// TestVerify checks that a backup verifies itself at its start, again after the interval, and not before.
func TestVerify(t *testing.T) {
	eachDatastore(t, func(t *testing.T, c *cluster) {
		c.files = []records.File{{Name: AboutName, Content: []byte("{}")}}
		begin := time.Now()
		c.now = func() time.Time { return begin }
		for i := range 300 {
			c.put(fmt.Sprintf("/registry/things/default/%d", i), strings.Repeat("x", i))
		}
		c.put("/registry/leases/default/a", "renewed")
		c.verify = day
		for round, want := range []bool{true, false, true} {
			if round == 2 {
				later := begin.Add(day)
				c.now = func() time.Time { return later }
			}
			last := c.newest()
			b, stop := c.start()
			revision := c.put("/registry/things/default/last", fmt.Sprint(round))
			c.await(b, revision)
			eventually(t, func() error {
				if s := b.Status(); want && !s.Verified.Equal(c.now().UTC().Truncate(time.Second)) && !s.Verified.Equal(c.now()) || s.Fault != "" || s.Differs != "" {
					return fmt.Errorf("round %d: %+v", round, s)
				}
				return nil
			})
			stop()
			if bases := c.basesAfter(last); (bases > 0) != want {
				t.Errorf("round %d: %d bases were written, verified is %v", round, bases, want)
			}
		}
		secret, err := c.api.CoreV1().Secrets(metav1.NamespaceSystem).Get(t.Context(), SecretName, metav1.GetOptions{})
		if at := secret.Annotations[verifiedAnnotation]; err != nil || at != c.now().UTC().Format(time.RFC3339) {
			t.Errorf("the cluster knows that it was verified at %q, %v", at, err)
		}
	})
}

// newest returns the number of the newest entry, or 0.
func (c *cluster) newest() int64 {
	c.t.Helper()
	tail, err := c.chain().Tail(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	if tail == nil {
		return 0
	}
	return tail.Number
}

// basesAfter returns how many bases there are after an entry.
func (c *cluster) basesAfter(number int64) (bases int) {
	c.t.Helper()
	for last := c.newest(); number < last; {
		number++
		entry, _, err := c.chain().Read(c.t.Context(), number)
		if err != nil {
			c.t.Fatal(err)
		}
		if entry.Kind == chain.Base {
			bases++
		}
	}
	return bases
}

// await waits until the backup has a revision.
func (c *cluster) await(b *Backup, revision int64) {
	c.t.Helper()
	eventually(c.t, func() error {
		if s := b.Status(); s.Revision < revision {
			return fmt.Errorf("the backup is at %d, not at %d: %s", s.Revision, revision, s.Fault)
		}
		return nil
	})
}

// lossy is a place that gives back other files than it got.
type lossy struct {
	place.Place
	damage func(ctx context.Context, name string, content []byte) ([]byte, error)
}

func (l *lossy) Read(ctx context.Context, name string) ([]byte, error) {
	content, err := l.Place.Read(ctx, name)
	if err != nil {
		return nil, err
	}
	return l.damage(ctx, name, content)
}

// TestVerifyFindsDamage checks that a place that loses what it has got is found out, and that kedge goes on when it works again.
func TestVerifyFindsDamage(t *testing.T) {
	eachDatastore(t, func(t *testing.T, c *cluster) {
		c.put("/registry/things/default/a", "value")
		c.verify = day
		var mended atomic.Bool
		var later atomic.Int64
		c.now = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
		for name, damage := range map[string]func([]byte) ([]byte, error){
			"bases/": func(content []byte) ([]byte, error) { return content[:len(content)/2], nil },
			"log/":   func([]byte) ([]byte, error) { return nil, errors.New("the disk cannot be read") },
		} {
			whole := c.place
			c.place = &lossy{whole, func(_ context.Context, file string, content []byte) ([]byte, error) {
				if !mended.Load() && strings.HasPrefix(file, name) {
					return damage(content)
				}
				return content, nil
			}}
			b, stop := c.start()
			eventually(t, func() error {
				if s := b.Status(); s.Differs == "" && s.Fault == "" || !s.Verified.IsZero() {
					return fmt.Errorf("of damaged files in %s nothing is said: %+v", name, s)
				}
				return nil
			})
			mended.Store(true)
			bases := c.newest()
			later.Add(int64(verifyAgain))
			c.put("/registry/things/default/a", name)
			eventually(t, func() error {
				if s := b.Status(); s.Fault != "" || s.Differs != "" || s.Verified.IsZero() {
					return fmt.Errorf("after that: %+v", s)
				}
				return nil
			})
			stop()
			if n := c.basesAfter(bases); n > 1 {
				t.Errorf("after the place was mended, all objects were written %d times", n)
			}
			mended.Store(false)
			c.place = whole
			if err := c.api.CoreV1().Secrets(metav1.NamespaceSystem).Delete(t.Context(), SecretName, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			tail, err := c.chain().Tail(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			c.appoint(len(c.chain().Appointments())+1, tail)
		}
	})
}

// slowly makes the place give back files of bases only when goOn is closed. reads is closed when one is asked for.
func (c *cluster) slowly(goOn <-chan struct{}) (reads <-chan struct{}) {
	asked := make(chan struct{})
	var once sync.Once
	c.place = &lossy{c.place, func(ctx context.Context, file string, content []byte) ([]byte, error) {
		if !strings.HasPrefix(file, "bases/") {
			return content, nil
		}
		once.Do(func() { close(asked) })
		select {
		case <-goOn:
		case <-ctx.Done():
		}
		return content, ctx.Err()
	}}
	return asked
}

// TestVerifyBeside checks that changes are written while a verification reads a slow place.
func TestVerifyBeside(t *testing.T) {
	eachDatastore(t, func(t *testing.T, c *cluster) {
		c.put("/registry/things/default/a", "value")
		c.verify = day
		goOn := make(chan struct{})
		reads := c.slowly(goOn)
		b, stop := c.start()
		defer stop()
		<-reads
		c.await(b, c.put("/registry/things/default/b", "value"))
		if s := b.Status(); !s.Verified.IsZero() {
			t.Errorf("it was verified before it was read: %+v", s)
		}
		close(goOn)
		eventually(t, func() error {
			if s := b.Status(); s.Verified.IsZero() || s.Fault != "" || s.Differs != "" {
				return fmt.Errorf("after it was read: %+v", s)
			}
			return nil
		})
	})
}

// TestStopWhileVerifying checks that a stop does not wait for a verification, and writes the last changes.
func TestStopWhileVerifying(t *testing.T) {
	eachDatastore(t, func(t *testing.T, c *cluster) {
		c.put("/registry/things/default/a", "value")
		c.verify, c.interval = day, time.Hour
		whole := c.place
		reads := c.slowly(nil)
		b, stop := c.start()
		<-reads
		revision := c.put("/registry/things/default/b", "value")
		eventually(t, func() error {
			if b.Status().Waiting.IsZero() {
				return errors.New("the change has not come")
			}
			return nil
		})
		stop()
		c.place = whole
		tail, err := c.chain().Tail(t.Context())
		if err != nil || tail.To < revision {
			t.Errorf("the backup ends with %+v, %v, want revision %d", tail, err, revision)
		}
		if s := b.Status(); s.Differs != "" {
			t.Errorf("the stop counts as a difference: %s", s.Differs)
		}
	})
}

// liar is a datastore that gives another value of an object at first.
type liar struct {
	clientv3.KV
	key string
	mu  sync.Mutex
}

func (l *liar) Get(ctx context.Context, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	answer, err := l.KV.Get(ctx, key, options...)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, kv := range answer.Kvs {
		if string(kv.Key) == l.key {
			kv.Value, l.key = []byte("another value"), ""
		}
	}
	return answer, nil
}

// TestVerifyFindsDifference checks that a backup that has something else than the cluster is found out, and written again.
func TestVerifyFindsDifference(t *testing.T) {
	eachDatastore(t, func(t *testing.T, c *cluster) {
		c.put("/registry/things/default/a", "value")
		revision := c.put("/registry/things/default/b", "value")
		c.verify = day
		var mu sync.Mutex
		now := time.Now()
		c.now = func() time.Time {
			mu.Lock()
			defer mu.Unlock()
			return now
		}
		connect := c.connect
		l := &liar{key: "/registry/things/default/a"}
		c.connect = func() (*clientv3.Client, error) {
			client, err := connect()
			if err == nil {
				l.KV = client.KV
				client.KV = l
			}
			return client, err
		}
		b, _ := c.start()
		eventually(t, func() error {
			if s := b.Status(); !strings.Contains(s.Differs, "1 objects differ, such as /registry/things/default/a") || !s.Verified.IsZero() {
				return fmt.Errorf("of the difference nothing is said: %+v", s)
			}
			return nil
		})
		c.await(b, revision)
		mu.Lock()
		now = now.Add(verifyAgain)
		mu.Unlock()
		c.put("/registry/things/default/b", "changed")
		eventually(t, func() error {
			if s := b.Status(); s.Differs != "" || s.Verified.IsZero() {
				return fmt.Errorf("after it was written again: %+v", s)
			}
			return nil
		})
	})
}

package encryption

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/kedge-dev/kedge/internal/base/localapi/localtest"
)

// A new cluster never has an unencrypted Secret, and only Secrets are encrypted.
func TestNew(t *testing.T) {
	clusters(t, func(t *testing.T, c *cluster) {
		e, _ := c.server("192.0.2.1")
		c.write(e, "one")
		c.read(e, "one")
		if stored := c.stored(prefix + "one"); bytes.Contains(stored, []byte(plaintext)) || !bytes.HasPrefix(stored, []byte(secretboxPrefix)) {
			t.Errorf("got stored Secret %q, want it encrypted", stored)
		}
		e.mu.Lock()
		secret := e.known.Keys[0].Secret
		e.mu.Unlock()
		if kept := c.stored(KeyringKey); bytes.Contains(kept, secret[:]) || bytes.Contains(kept, []byte("secret")) {
			t.Errorf("the keys are stored as %q", kept)
		}
		if e.TransformerForResource(schema.GroupResource{Resource: "configmaps"}) != nil {
			t.Error("ConfigMaps are encrypted")
		}
		c.rest(e, "encrypted", encrypted(1))
	})
}

// A server follows another server's change at once: it writes with the new key, and
// reads what is written with it.
func TestRotate(t *testing.T) {
	clusters(t, func(t *testing.T, c *cluster) {
		one, _ := c.server("192.0.2.1")
		two, _ := c.server("192.0.2.2")
		const secrets = 2*page + 3
		for n := range secrets {
			c.write(one, fmt.Sprint(n))
		}
		c.read(two, "0")
		before := c.status(one).Keys[0].Name
		if _, err := one.rewrite(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		if _, err := two.rewrite(t.Context(), true); err == nil || !strings.Contains(err.Error(), "already being rewritten") {
			t.Errorf("rotate twice at once: got error %v, want that Secrets are already being rewritten", err)
		}
		c.write(two, "of-two")
		if name, _ := keyOf(c.stored(prefix + "of-two")); string(name) == before {
			t.Error("the other server still writes with the old key")
		}
		c.read(one, "of-two")
		c.keep(two)
		c.rest(one, "rotated", func(s Status) bool { return encrypted(secrets+1)(s) && s.Keys[0].Name != before })
		for n := range secrets {
			c.read(two, fmt.Sprint(n))
		}
	})
}

// A change that is interrupted at any point is completed by the next Keeper.
func TestInterrupted(t *testing.T) {
	clusters(t, func(t *testing.T, c *cluster) {
		e, _ := c.server("192.0.2.1")
		for n := range 20 {
			c.write(e, fmt.Sprint(n))
		}
		if _, err := e.rewrite(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		for calls := 1; c.status(e).Pending; calls++ {
			// This Keeper's server is killed after that many requests.
			dying, kill := context.WithCancel(t.Context())
			client, err := c.newClient()
			if err != nil {
				t.Fatal(err)
			}
			client.KV = &counted{KV: client.KV, left: calls, end: kill}
			killed := c.notStarted("192.0.2.1")
			killed.under, killed.client = e.under, client
			if _, err := hastyKeeper(killed).advance(dying); err == nil && dying.Err() == nil && c.status(e).Pending {
				t.Error("advance returned although the rotation is not done")
			}
			kill()
			client.Close()
			for n := range 20 {
				c.read(e, fmt.Sprint(n))
			}
		}
		c.rest(e, "rotated", encrypted(20))
	})
}

// counted is a client of a server that is killed.
type counted struct {
	clientv3.KV
	left int
	end  func()
}

func (k *counted) die() {
	if k.left--; k.left < 0 {
		k.end()
	}
}

func (k *counted) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	k.die()
	return k.KV.Get(ctx, key, opts...)
}

func (k *counted) Txn(ctx context.Context) clientv3.Txn {
	k.die()
	return k.KV.Txn(ctx)
}

// A cluster from before encryption existed is encrypted once every server can read
// encrypted Secrets. Encryption is turned off once all servers have it set so.
func TestOnAndOff(t *testing.T) {
	c := newEtcd(t)
	c.put(prefix+"old", []byte(plaintext+"old"))
	c.lease("192.0.2.2")
	one, stop := c.server("192.0.2.1")
	stopKeeping := c.keep(one)
	c.eventually(one, "waiting for the older kedge", func(s Status) bool { return strings.Contains(s.Waiting, "192.0.2.2 runs an older kedge") })
	c.write(one, "new")
	c.rest(one, "plain", plain(2))
	two, stopTwo := c.server("192.0.2.2")
	stopKeeping() // saves waiting for its next check
	stopKeeping = c.keep(one)
	c.rest(two, "encrypted", encrypted(2))
	c.read(two, "old")

	stopKeeping()
	stop()
	one, _ = c.server("192.0.2.1", off)
	stopKeeping = c.keep(one)
	c.eventually(one, "waiting for the other server", func(s Status) bool {
		return strings.Contains(s.Waiting, "192.0.2.2 has secrets-encryption: true")
	})
	c.rest(one, "encrypted still", encrypted(2))
	stopTwo()
	two, _ = c.server("192.0.2.2", off)
	stopKeeping()
	c.keep(one)
	c.rest(two, "plain", plain(2))
	c.read(two, "old")
	if _, err := two.rewrite(t.Context(), true); err == nil || !strings.Contains(err.Error(), "secrets-encryption: true") {
		t.Errorf("rotate: %v", err)
	}
}

// reencrypt rewrites a Secret that was written without the API.
func TestReencrypt(t *testing.T) {
	clusters(t, func(t *testing.T, c *cluster) {
		e, _ := c.server("192.0.2.1")
		c.keep(e)
		c.put(prefix+"one", []byte(plaintext+"one"))
		c.read(e, "one")
		if _, err := e.rewrite(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		c.rest(e, "encrypted", encrypted(1))
		c.read(e, "one")
	})
}

// A Secret whose key is gone stays as it is, and does not block the rest.
func TestLost(t *testing.T) {
	c := newSQLite(t)
	e, _ := c.server("192.0.2.1")
	c.write(e, "one")
	c.put(prefix+"lost", []byte(secretboxPrefix+"2006-01-02-00000000:what it is nobody knows"))
	if _, err := e.rewrite(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	c.keep(e)
	c.eventually(e, "rotated", func(s Status) bool { return !s.Pending && s.Lost == 1 && s.Keys[0].Secrets == 1 })
	_, _, err := current{e}.TransformFromStorage(t.Context(), c.stored(prefix+"lost"), value.DefaultContext(prefix+"lost"))
	if err == nil || !strings.Contains(err.Error(), "no longer has the key") {
		t.Errorf("read: %v", err)
	}
}

// If the user encrypts Secrets, kedge does nothing, unless its own keys are in
// use.
func TestTheirs(t *testing.T) {
	c := newSQLite(t)
	theirs := func(cfg *Config) { cfg.Theirs = "they have an argument" }
	e, stop := c.server("192.0.2.1", theirs)
	c.keep(e)
	if e.TransformerForResource(schema.GroupResource{Resource: "secrets"}) != nil {
		t.Error("Secrets are encrypted by kedge")
	}
	for _, rotate := range []bool{true, false} {
		if _, err := e.rewrite(t.Context(), rotate); err == nil || !strings.Contains(err.Error(), "they have an argument") {
			t.Errorf("rotate %t: %v", rotate, err)
		}
	}
	stop()
	_, stop = c.server("192.0.2.1")
	stop()
	err := c.notStarted("192.0.2.1", theirs).Run(t.Context(), func() { t.Error("it started") })
	if err == nil || !strings.Contains(err.Error(), "they have an argument") || !strings.Contains(err.Error(), "secrets-encryption: false") {
		t.Errorf("start with Secrets encrypted by kedge's keys: got error %v, want one that names the setting", err)
	}
}

// The keys of another cluster are refused.
func TestOtherKey(t *testing.T) {
	c := newSQLite(t)
	_, stop := c.server("192.0.2.1")
	stop()
	if err := os.WriteFile(c.key, []byte("another one"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := c.notStarted("192.0.2.1").Run(t.Context(), func() { t.Error("it started") })
	if err == nil || !strings.Contains(err.Error(), "encryption.key") {
		t.Errorf("got %v", err)
	}
}

// Commands use the socket.
func TestAsk(t *testing.T) {
	c := newSQLite(t)
	e, _ := c.server("192.0.2.1")
	kedge := localtest.Serve(t, e.Routes()...)
	c.write(e, "one")
	c.keep(e)
	if s, err := AskRotate(t.Context(), kedge); err != nil || len(s.Keys) == 0 {
		t.Fatalf("rotate: %+v, %v", s, err)
	}
	s, err := Await(t.Context(), kedge, func(string) {})
	if err != nil || !encrypted(1)(s) || len(s.Servers) != 1 {
		t.Errorf("got %+v, %v", s, err)
	}
	if _, err := AskReencrypt(t.Context(), kedge); err != nil {
		t.Errorf("reencrypt: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Await(ended, kedge, func(string) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

package etcd

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/version"
)

// TestTrial has data of an older etcd, which stay readable for it until the trial of this one
// has ended. Then it cannot read them any more, and says what to do.
func TestTrial(t *testing.T) {
	const older, olderMinor, ownMinor = "3.6.11", "3.6.0", "3.7.0"
	own := version.Version
	t.Cleanup(func() { version.Version = own })
	h := newHost(t, 71, nil)
	runAs := func(number string) {
		t.Helper()
		version.Version = number
		h.start(nil)
	}
	stores := func(want string) {
		t.Helper()
		eventually(t, "etcd to store as version "+want, func() error {
			server := h.member.server.Load()
			if agreed, stored := server.ClusterVersion(), server.StorageVersion(); agreed == nil || stored == nil || agreed.String() != want || stored.String() != want {
				return fmt.Errorf("the members agree on %v, and the data are of %v", agreed, stored)
			}
			return nil
		})
	}
	end := func() {
		t.Helper()
		if err := h.end(); err != nil {
			t.Fatal(err)
		}
	}
	data := func(want string) {
		t.Helper()
		if found, err := dataVersion(database(h.dir.Etcd())); err != nil || found == nil || found.String() != want {
			t.Errorf("the data are of %v, want %s: %v", found, want, err)
		}
	}

	runAs(older)
	stores(olderMinor)
	h.put("kept")
	end()
	data(olderMinor)

	h.trial = true
	runAs(own)
	h.get("kept")
	// Etcd looks at the versions of its members at once, and then every four seconds.
	time.Sleep(6 * time.Second)
	stores(olderMinor)
	end()
	data(olderMinor)

	h.trial = false
	runAs(older)
	h.get("kept")
	end()

	runAs(own)
	stores(ownMinor)
	h.get("kept")
	end()
	data(ownMinor)

	h.trial = true
	runAs(own) // there is nothing to hold back now
	stores(ownMinor)
	end()

	version.Version = older
	h.member = New(h.config())
	if err := h.member.Run(context.Background(), func() { t.Error("the older etcd has got ready") }); err == nil ||
		!strings.Contains(err.Error(), "are those of etcd v3.7, and this kedge has etcd v3.6") {
		t.Errorf("the older etcd ended with: %v", err)
	}
}

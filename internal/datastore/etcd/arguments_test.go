package etcd

import (
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

func TestArguments(t *testing.T) {
	c := embed.NewConfig()
	c.ClientTLSInfo.CertFile = "kept"
	if err := apply(c, []string{"quota-backend-bytes=4294967296", "--experimental-compaction-sleep-interval=20ms", "heartbeat_interval=200", "election-timeout=2000"}); err != nil {
		t.Fatal(err)
	}
	if c.QuotaBackendBytes != 4<<30 || c.CompactionSleepInterval != 20*time.Millisecond || c.TickMs != 200 || c.ElectionMs != 2000 || c.ClientTLSInfo.CertFile != "kept" {
		t.Errorf("got %+v", c)
	}
	err := CheckArguments([]string{"unsafe-no-fsync=true", "data-dir=/x", "max-wals=many", "no-such=1"})
	for _, want := range []string{"unsafe-no-fsync=true: kedge sets this itself", "data-dir=/x", "max-wals=many", "no-such=1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
	if err := CheckArguments([]string{"heartbeat-interval=1000"}); err == nil || !strings.Contains(err.Error(), "set both") {
		t.Errorf("got %v", err)
	}
	if err := CheckArguments(nil); err != nil {
		t.Error(err)
	}
}

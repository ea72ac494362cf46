package pki

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

func TestList(t *testing.T) {
	o := options(t)
	s := ensure(t, o)
	now := time.Now()
	listed, err := List(o.Dir, now)
	if err != nil {
		t.Fatal(err)
	}
	of := func(listed []Listed, file string) Listed {
		t.Helper()
		i := slices.IndexFunc(listed, func(l Listed) bool { return l.File == file })
		if i < 0 {
			t.Fatalf("%s is not listed in %v", file, listed)
		}
		return listed[i]
	}
	if len(listed) != 11 {
		t.Errorf("got %d certificates, want 11", len(listed))
	}
	serving := of(listed, s.ServingCertFile)
	if serving.Status != StatusOK || serving.DaysLeft < 363 || serving.DaysLeft > 365 || !slices.Equal(serving.Usage, []string{"server"}) ||
		!strings.Contains(serving.NamesOrUsage(), "kubernetes.default.svc") || !strings.Contains(serving.NamesOrUsage(), "192.0.2.7") {
		t.Errorf("got serving certificate %+v, want status OK, about 364 days, usage server and all names", serving)
	}
	if ca := of(listed, s.ServerCAFile); ca.NamesOrUsage() != "CA" || !strings.Contains(ca.Subject, "kedge-server-ca") {
		t.Errorf("got %+v, want the authority kedge-server-ca", ca)
	}
	if admin := of(listed, filepath.Join(o.Dir.ServerTLS(), "client-admin.crt")); admin.NamesOrUsage() != "client" {
		t.Errorf("got %+v, want the usage client", admin)
	}
	for status, later := range map[string]time.Duration{StatusSoon: leafValidity - RenewBefore + time.Hour, StatusEnded: leafValidity + time.Hour} {
		listed, err := List(o.Dir, now.Add(later))
		if err != nil || of(listed, s.ServingCertFile).Status != status || of(listed, s.ServerCAFile).Status != StatusOK {
			t.Errorf("%s later: %v, %+v", later, err, listed)
		}
	}
	if err := os.WriteFile(s.ServingCertFile, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if listed, err := List(o.Dir, now); err == nil || !strings.Contains(err.Error(), s.ServingCertFile) || len(listed) != 10 {
		t.Errorf("with one damaged file: got error %v and %d certificates, want its name and 10", err, len(listed))
	}
	if _, err := List(datadir.Dir(t.TempDir()), now); err == nil || !strings.Contains(err.Error(), "--data-dir") {
		t.Errorf("an empty folder: %v", err)
	}
}

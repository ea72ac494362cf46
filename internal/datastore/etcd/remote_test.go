package etcd

import (
	"crypto/tls"
	"errors"
	"net/http/httptest"
	"slices"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// A server without a member writes and watches through another server's port, and
// learns where the members are.
func TestRemote(t *testing.T) {
	one := newHost(t, 61, nil)
	port := httptest.NewUnstartedServer(nil)
	one.public = port.Listener.Addr().String()
	one.start(nil)
	port.Config.Handler = one.member
	port.EnableHTTP2 = true
	port.StartTLS()
	defer port.Close()

	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{port.URL}, TLS: &tls.Config{InsecureSkipVerify: true}, Logger: zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	changes := client.Watch(t.Context(), "/x", clientv3.WithCreatedNotify())
	<-changes
	if _, err := client.Put(t.Context(), "/x", "1"); err != nil {
		t.Fatal(err)
	}
	if change := <-changes; len(change.Events) != 1 || string(change.Events[0].Kv.Value) != "1" {
		t.Errorf("got events %v, %v, want one with the value 1", change.Events, change.Err())
	}
	eventually(t, "the member to say where it is", func() error {
		if addresses, usable := one.member.Members(); !usable || !slices.Equal(addresses, []string{one.public}) {
			return errors.New("it does not")
		}
		return nil
	})

	if err := one.end(); err != nil {
		t.Error(err)
	}
	if _, usable := one.member.Members(); usable {
		t.Error("Members says that a stopped member is usable")
	}
}

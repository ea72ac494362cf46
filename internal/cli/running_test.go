package cli

import (
	"context"
	"slices"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/localapi"
	"github.com/kedge-dev/kedge/internal/cluster/renewal"
	"github.com/kedge-dev/kedge/internal/controlplane/encryption"
	"github.com/kedge-dev/kedge/internal/controlplane/policycontrol"
	"github.com/kedge-dev/kedge/internal/datastore/backup"
	"github.com/kedge-dev/kedge/internal/datastore/snapshot"
	"github.com/kedge-dev/kedge/internal/inspect/settings"
	"github.com/kedge-dev/kedge/internal/inspect/status"
)

// TestEndpoints: each line of localapi's table is answered by one part of a server.
func TestEndpoints(t *testing.T) {
	certificates := renewal.New(renewal.Config{
		Replace: func(context.Context, bool) error { return nil },
		Lagging: func(context.Context, map[string]string, []string) (renewal.Lag, error) { return renewal.Lag{}, nil },
	})
	var answered []localapi.Endpoint
	for _, routes := range [][]localapi.Route{
		new(settings.Settings).Routes(),
		status.New(status.Config{}).Routes(),
		certificates.Routes(),
		encryption.New(encryption.Config{}).Routes(),
		snapshot.New(snapshot.Config{}).Routes(),
		backup.New(backup.Config{}).Routes(),
		policycontrol.New(policycontrol.Config{}).Routes(),
	} {
		for _, route := range routes {
			answered = append(answered, route.Endpoint)
		}
	}
	slices.Sort(answered)
	if all := localapi.Endpoints(); !slices.Equal(answered, all) {
		t.Errorf("the table has %v, and the parts answer %v", all, answered)
	}
}

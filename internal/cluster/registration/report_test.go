package registration

import (
	"context"
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kedge-dev/kedge/internal/base/component"
)

// TestRegistrationReports has an API that refuses the registration at first. `kedge status` must
// say why, until it succeeds.
func TestRegistrationReports(t *testing.T) {
	client, refused := newClient(), 0
	client.PrependReactor("create", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		if refused++; refused > 2 {
			return false, nil, nil
		}
		return true, nil, apierrors.NewInternalError(errors.New("failed calling webhook"))
	})
	ctx, cancel := context.WithCancel(t.Context())
	var told []string
	group := component.Group{OnReady: cancel, OnFault: func(s component.Status) { told = append(told, s.Fault) }}
	group.Add(NewServerNode(client, claimOf("server", "secret")))
	if err := group.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if len(told) != 2 || !strings.Contains(told[0], "cannot register node server yet") || !strings.Contains(told[0], "failed calling webhook") || told[1] != "" {
		t.Errorf("status says %q, want the fault, and then none", told)
	}
}

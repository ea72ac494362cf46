package restriction

import (
	"context"
	"fmt"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/kedge-dev/kedge/internal/base/gateways"
)

// checkHosts keeps users of one namespace from giving it host names of others. A user who may do
// everything in a namespace may also change the Namespace itself.
func (p *plugin) checkHosts(ctx context.Context, a admission.Attributes) error {
	now, before, err := metadata(a)
	if err != nil {
		return err
	}
	hosts := now.GetAnnotations()[gateways.HostsAnnotation]
	if hosts == before.GetAnnotations()[gateways.HostsAnnotation] {
		return nil
	}
	allowed, err := p.may(ctx, authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: "update", APIVersion: "v1", Resource: "namespaces", ResourceRequest: true,
	})
	if err != nil || allowed {
		return err
	}
	return admission.NewForbidden(a, fmt.Errorf("the annotation %s gives the hosts %q to this namespace, and takes them from others. "+
		"So only users who may update all namespaces may change it: ask an administrator", gateways.HostsAnnotation, hosts))
}

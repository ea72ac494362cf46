package status

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/internal/base/gateways"
	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

// readGateways describes the Services by which clients reach Gateways and Ingresses.
func readGateways(ctx context.Context, client kubernetes.Interface, nodes []corev1.Node) ([]Gateway, error) {
	services, err := client.CoreV1().Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{ResourceVersion: "0", LabelSelector: gateways.FrontLabel})
	// A server of an earlier version takes this right away when it starts.
	if apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	listening := map[string]map[gateways.Port]bool{}
	for _, node := range nodes {
		// What another program has written there counts as nothing.
		listening[node.Name], _ = gateways.ParseListening(node.Annotations[gateways.ListeningAnnotation])
	}
	var found []Gateway
	for _, service := range services.Items {
		if service.Labels[gateways.FrontLabel] == service.Name {
			found = append(found, describeGateway(&service, listening))
		}
	}
	slices.SortFunc(found, func(a, b Gateway) int { return cmp.Compare(a.Name, b.Name) })
	return found, nil
}

// describeGateway describes a Service. listening has the sockets of each node.
func describeGateway(service *corev1.Service, listening map[string]map[gateways.Port]bool) Gateway {
	g := Gateway{Name: service.Namespace + "/" + service.Name, Ports: []string{}, Addresses: []string{}, Nodes: []string{}}
	for _, port := range service.Spec.Ports {
		g.Ports = append(g.Ports, fmt.Sprintf("%d/%s", port.Port, port.Protocol))
	}
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		g.Addresses = append(g.Addresses, cmp.Or(ingress.IP, ingress.Hostname))
	}
	for _, condition := range service.Status.Conditions {
		if condition.Type == servicelb.Condition && condition.Status != metav1.ConditionTrue {
			g.Fault = condition.Message
		}
	}
	for node, open := range listening {
		if !slices.ContainsFunc(service.Spec.Ports, func(port corev1.ServicePort) bool {
			return !open[gateways.Port{Number: uint16(port.TargetPort.IntVal), Transport: routing.Transport(strings.ToLower(string(port.Protocol)))}]
		}) {
			g.Nodes = append(g.Nodes, node)
		}
	}
	slices.Sort(g.Nodes)
	return g
}

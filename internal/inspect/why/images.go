package why

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"

	"github.com/kedge-dev/kedge/internal/base/foreigntext"
)

// images says why a node does not have an image.
var images = []rule[*corev1.Pod]{
	{"image-name", pulling(func(_ *world, _ *corev1.Pod, c container, _ string) *finding {
		if c.status.State.Waiting.Reason != "InvalidImageName" {
			return nil
		}
		return found("correct spec.containers[].image. Names of images have lower-case letters only, such as docker.io/library/nginx:1.29", "the %s has the image %q, which is not the name of an image", c, plain(c.Image))
	})},
	{"image-never-pulled", pulling(func(_ *world, p *corev1.Pod, c container, _ string) *finding {
		if c.status.State.Waiting.Reason != "ErrImageNeverPull" {
			return nil
		}
		return found("import the image there (`kedge image import FILE`), or remove imagePullPolicy: Never", "node %s does not have the image %s, and imagePullPolicy is Never", p.Spec.NodeName, c.Image)
	})},
	{"pull-secret-missing", pulling(func(w *world, p *corev1.Pod, c container, fault string) *finding {
		if !refusedPull.MatchString(fault) {
			return nil
		}
		for _, s := range p.Spec.ImagePullSecrets {
			if _, ok := keysOf(w, p.Namespace, "Secret", s.Name); !ok && !w.isHidden("Secrets") {
				return found(fmt.Sprintf("kubectl -n %s create secret docker-registry %s --docker-server=%s --docker-username=… --docker-password=…", p.Namespace, foreigntext.Argument(s.Name), foreigntext.Argument(registryOf(c.Image))),
					"the registry %s refuses the image %s, and the pod's imagePullSecret %s does not exist", registryOf(c.Image), c.Image, s.Name)
			}
		}
		return nil
	})},
	{"pull-refused", pulling(func(_ *world, p *corev1.Pod, c container, fault string) *finding {
		if !refusedPull.MatchString(fault) {
			return nil
		}
		tried := "without an imagePullSecret"
		if names := p.Spec.ImagePullSecrets; len(names) > 0 {
			tried = "with the imagePullSecret " + names[0].Name
		}
		return found(fmt.Sprintf("correct the name of the image, or give the pod an imagePullSecret with the right password: kubectl -n %s create secret docker-registry --help", p.Namespace),
			"the registry %s refuses the image %s. The node asked %s. Registries answer like this, too, if there is no such image", registryOf(c.Image), c.Image, tried)
	})},
	{"image-platform", pulling(func(w *world, p *corev1.Pod, c container, fault string) *finding {
		if !strings.Contains(fault, "no match for platform") {
			return nil
		}
		return found("use an image for this architecture, or give the pod a nodeSelector such as kubernetes.io/arch: amd64", "the image %s does not exist for the architecture of node %s%s", c.Image, p.Spec.NodeName, architecture(w, p.Spec.NodeName))
	})},
	{"image-not-found", pulling(func(_ *world, _ *corev1.Pod, c container, fault string) *finding {
		if !strings.HasSuffix(fault, "not found") && !strings.Contains(fault, "manifest unknown") && !strings.Contains(fault, "name unknown") {
			return nil
		}
		return found("correct the name or the tag of the image", "the registry %s has no image %s", registryOf(c.Image), c.Image)
	})},
	{"registry-name", pulling(func(_ *world, p *corev1.Pod, c container, fault string) *finding {
		if !strings.Contains(fault, "no such host") && !strings.Contains(fault, "dial tcp: lookup ") {
			return nil
		}
		return found("correct the name of the image, or the nameservers of the node (/etc/resolv.conf)", "node %s finds no address for the registry %s", p.Spec.NodeName, registryOf(c.Image))
	})},
	{"registry-http", pulling(func(_ *world, p *corev1.Pod, c container, fault string) *finding {
		if !strings.Contains(fault, "server gave HTTP response to HTTPS client") {
			return nil
		}
		return found("give the registry an endpoint with http:// in /etc/kedge/registries.yaml: see docs/images.md", "the registry %s speaks HTTP without TLS, and node %s asks with HTTPS", registryOf(c.Image), p.Spec.NodeName)
	})},
	{"registry-certificate", pulling(func(_ *world, p *corev1.Pod, c container, fault string) *finding {
		if !strings.Contains(fault, "x509: ") {
			return nil
		}
		return found("give the registry's authority as ca_file in /etc/kedge/registries.yaml: see docs/images.md", "node %s does not trust the certificate of the registry %s: %s", p.Spec.NodeName, registryOf(c.Image), plain(afterLast(fault, "x509: ")))
	})},
	{"registry-limit", pulling(func(_ *world, _ *corev1.Pod, c container, fault string) *finding {
		if !strings.Contains(fault, "toomanyrequests") && !strings.Contains(fault, "429 Too Many Requests") {
			return nil
		}
		return found("wait, log in with an imagePullSecret, or use a mirror: see docs/images.md", "the registry %s limits how much may be pulled, and refuses the image %s for now", registryOf(c.Image), c.Image)
	})},
	{"registry-away", pulling(func(_ *world, p *corev1.Pod, c container, fault string) *finding {
		reason := regexp.MustCompile(`connection refused|i/o timeout|no route to host|network is unreachable|connection reset|EOF|deadline exceeded`).FindString(fault)
		if reason == "" {
			return nil
		}
		return found(fmt.Sprintf("see whether the registry runs, and whether the node reaches it: curl -v %s", foreigntext.Argument("https://"+registryOf(c.Image)+"/v2/")), "node %s cannot reach the registry %s: %s", p.Spec.NodeName, registryOf(c.Image), reason)
	})},
	{"image-no-space", pulling(func(_ *world, p *corev1.Pod, c container, fault string) *finding {
		if !strings.Contains(fault, "no space left") {
			return nil
		}
		return found("remove files from the disk of the node, or give it a larger one", "node %s has no room for the image %s", p.Spec.NodeName, c.Image)
	})},
	{"image-not-pulled", pulling(func(_ *world, p *corev1.Pod, c container, fault string) *finding {
		if fault == "" {
			return nil
		}
		return found(fmt.Sprintf("kubectl -n %s describe pod %s shows the whole message", p.Namespace, p.Name), "node %s cannot pull the image %s: %s", p.Spec.NodeName, c.Image, plain(withoutCodes(fault)))
	})},
}

// refusedPull finds the answers of registries to a wrong password, or to none.
var refusedPull = regexp.MustCompile(`401 Unauthorized|403 Forbidden|pull access denied|authorization failed|insufficient_scope|no basic auth credentials`)

// pullReasons are what the kubelet calls a container whose image is missing.
var pullReasons = []string{"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable", "ImageInspectError", "SignatureValidationFailed"}

// pulling applies a rule to the first container whose image is missing. fault is the error of the pull.
func pulling(find func(w *world, p *corev1.Pod, c container, fault string) *finding) func(*world, *corev1.Pod) *finding {
	return func(w *world, p *corev1.Pod) *finding {
		for _, c := range containers(p) {
			if c.status == nil || c.status.State.Waiting == nil || !slices.Contains(pullReasons, c.status.State.Waiting.Reason) {
				continue
			}
			return find(w, p, c, pullFault(w, p, c))
		}
		return nil
	}
}

// lastPull finds the error of the last pull in the kubelet's message about the next one.
var lastPull = regexp.MustCompile(`(?s)^Back-off pulling image "[^"]*": \w+: (.*)$`)

// pullFault returns the error of the last pull.
func pullFault(w *world, p *corev1.Pod, c container) string {
	waiting := c.status.State.Waiting
	if last := lastPull.FindStringSubmatch(waiting.Message); last != nil {
		return last[1]
	}
	if waiting.Reason != "ImagePullBackOff" {
		return waiting.Message
	}
	for _, e := range w.events(p.Namespace, p.UID) {
		if e.Type == corev1.EventTypeWarning && strings.HasPrefix(e.Message, "Failed to pull image") && strings.Contains(e.Message, c.Image) {
			return e.Message
		}
	}
	return ""
}

// registryOf returns the host of an image.
func registryOf(image string) string {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return image
	}
	return reference.Domain(named)
}

// architecture returns the architecture of a node, if the user may read it.
func architecture(w *world, name string) string {
	n, ok := node(w, name)
	if !ok {
		return ""
	}
	return " (" + n.Status.NodeInfo.Architecture + ")"
}

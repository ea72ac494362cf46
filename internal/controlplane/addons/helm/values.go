package helm

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/strvals"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// merged returns the values for the release from a HelmChart and its
// HelmChartConfig. Later values win, in this order: the chart's, the config's,
// and set.
func (c *controller) merged(ctx context.Context, chart *helmChart, config *helmChartConfig) (map[string]any, error) {
	all := map[string]any{}
	for _, from := range []struct {
		kind string
		Overrides
	}{{"HelmChart", chart.Spec.Overrides}, {"HelmChartConfig", config.Spec}} {
		texts, err := c.secretTexts(ctx, chart.Namespace, from.ValuesSecrets)
		if err != nil {
			return nil, fmt.Errorf("%s: valuesSecrets: %w", from.kind, err)
		}
		for _, text := range append([]string{from.ValuesContent}, texts...) {
			read, err := common.ReadValues([]byte(text))
			if err != nil {
				return nil, fmt.Errorf("%s: read values: %w", from.kind, err)
			}
			all = loader.MergeMaps(all, read)
		}
		all = loader.MergeMaps(all, from.Values)
	}
	for _, key := range slices.Sorted(maps.Keys(chart.Spec.Set)) {
		value := chart.Spec.Set[key]
		parse := strvals.ParseIntoString
		if value.Type == intstr.Int || slices.Contains([]string{"true", "false", "null"}, strings.ToLower(value.StrVal)) {
			parse = strvals.ParseInto
		}
		// As in k3s, a comma is part of the value.
		if err := parse(key+"="+strings.ReplaceAll(value.String(), ",", `\,`), all); err != nil {
			return nil, fmt.Errorf("HelmChart: set %s: %w", key, err)
		}
	}
	return all, nil
}

// secretTexts returns the values in Secrets as texts.
func (c *controller) secretTexts(ctx context.Context, namespace string, from []secretValues) (texts []string, err error) {
	for _, reference := range from {
		secret, err := c.api.CoreV1().Secrets(namespace).Get(ctx, reference.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) && reference.IgnoreUpdates {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, key := range reference.Keys {
			text, ok := secret.Data[key]
			if !ok && !reference.IgnoreUpdates {
				return nil, fmt.Errorf("the Secret %s/%s has no key %s", namespace, reference.Name, key)
			}
			texts = append(texts, string(text))
		}
	}
	return texts, nil
}

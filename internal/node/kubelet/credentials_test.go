package kubelet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCredentialProviders hands the folder and the file to the kubelet. It refuses what the kubelet
// would end the process for.
func TestCredentialProviders(t *testing.T) {
	const head = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n"
	const rest = ", apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: [registry.test], defaultCacheDuration: 1h"
	for name, test := range map[string]struct{ config, want string }{
		"one":           {head + "- {name: ecr" + rest + "}\n", ""},
		"older":         {strings.Replace(head, "/v1\n", "/v1alpha1\n", 1) + "- {name: ecr" + strings.Replace(rest, "/v1,", "/v1beta1,", 1) + "}\n", ""},
		"no program":    {head + "- {name: gcr" + rest + "}\n", "gcr, which is not there or not executable"},
		"no executable": {head + "- {name: notes" + rest + "}\n", "notes, which is not there or not executable"},
		"a path":        {head + "- {name: ../ecr" + rest + "}\n", "name must be"},
		"twice":         {head + "- {name: ecr" + rest + "}\n- {name: ecr" + rest + "}\n", "two providers called \"ecr\""},
		"no version":    {head + "- {name: ecr, matchImages: [a], defaultCacheDuration: 1h}\n", "apiVersion is \"\": use one of"},
		"no images":     {head + "- {name: ecr, apiVersion: credentialprovider.kubelet.k8s.io/v1, defaultCacheDuration: 1h}\n", "matchImages is empty"},
		"no duration":   {head + "- {name: ecr, apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: [a]}\n", "defaultCacheDuration is not set"},
		"no providers":  {head, "has no providers"},
		"another field": {head + "- {name: ecr, image: a" + rest + "}\n", "unknown field"},
		"another kind":  {"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n", "kind CredentialProviderConfig"},
		"no YAML":       {"providers: [", "providers.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			must(t, os.WriteFile(filepath.Join(folder, "ecr"), []byte("#!/bin/sh\n"), 0o755))
			must(t, os.WriteFile(filepath.Join(folder, "notes"), nil, 0o644))
			file := filepath.Join(folder, "providers.yaml")
			must(t, os.WriteFile(file, []byte(test.config), 0o644))
			for _, config := range []string{file, folder} {
				cfg := testConfig()
				cfg.CredentialProviders, cfg.CredentialConfig = folder, config
				k, err := New(cfg)
				switch {
				case test.want != "":
					if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "image-credential-provider") {
						t.Errorf("got %v, want %q", err, test.want)
					}
				case err != nil:
					t.Error(err)
				case k.server.ImageCredentialProviderBinDir != folder || k.server.ImageCredentialProviderConfigPath != config:
					t.Errorf("got %q and %q", k.server.ImageCredentialProviderBinDir, k.server.ImageCredentialProviderConfigPath)
				}
			}
		})
	}
	cfg := testConfig()
	cfg.CredentialProviders, cfg.CredentialConfig = t.TempDir(), t.TempDir()
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "has no *.yaml") {
		t.Errorf("got %v", err)
	}
	cfg.CredentialConfig = "/nowhere.yaml"
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "/nowhere.yaml") {
		t.Errorf("got %v", err)
	}
}

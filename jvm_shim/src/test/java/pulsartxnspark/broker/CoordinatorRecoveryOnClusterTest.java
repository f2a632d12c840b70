package pulsartxnspark.broker;

import pulsartxnspark.store.OnCluster;

@OnCluster
class CoordinatorRecoveryOnClusterTest extends CoordinatorRecoveryTest {}
